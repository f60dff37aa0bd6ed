'use strict';
/**
 * The tokens of a rollout, shaded by a number of each: hovering, touching or focusing one shows its numbers. The shade
 * is never the only carrier: the numbers can be written under the tokens, and what is below zero is underlined.
 */
(() => {
  const { h, show } = winnow.dom;
  const { short, signed, percent, known, whole } = winnow.numbers;
  const { foreign, model } = winnow;
  const SHOWN = 1500; // tokens drawn at first
  const PIECE = 3000; // tokens added at a time
  const SURPRISE = [0.05, 0.2, 0.5, 1, 2, 3, 5, 8]; // nats: ends of the levels of a log-prob

  const extents = new WeakMap(); // group -> kind -> [low, high]

  const KINDS = {
    logprob: { label: 'log-prob', of: (r) => r.logprobs, write: short },
    advantage: { label: 'advantage', of: (r) => r.advantages ?? (known(r.advantage) && r.pieces ? r.pieces.map(() => r.advantage) : null), write: signed },
    value: { label: 'value', of: (r) => r.values, write: short },
  };

  /** What a group's rollouts can be shaded by. */
  const kinds = (group) => Object.keys(KINDS).filter((kind) => group.rollouts.some((r) => r.pieces && KINDS[kind].of(r)));

  /** The smallest and largest of a group's numbers: its rollouts share one scale, so they can be compared. */
  function extent(group, kind) {
    const own = extents.get(group) ?? {};
    extents.set(group, own);
    return (own[kind] ??= measured(group, kind));
  }

  function measured(group, kind) {
    let [low, high] = [Infinity, -Infinity];
    for (const r of group.rollouts) {
      for (const x of KINDS[kind].of(r) ?? []) if (known(x)) { low = Math.min(low, x); high = Math.max(high, x); }
    }
    return low <= high ? [low, high] : [0, 0];
  }

  /** The class of a number: "less3" of four below zero, "more2" of four above, "level5" of eight. */
  function shade(kind, x, [low, high]) {
    if (!known(x)) return '';
    if (kind === 'logprob') return `level${SURPRISE.filter((end) => -x > end).length}`;
    if (kind === 'advantage') {
      const size = Math.max(Math.abs(low), Math.abs(high));
      const level = size ? Math.ceil((4 * Math.abs(x)) / size - 1e-9) : 0;
      return level ? `${x < 0 ? 'less' : 'more'}${Math.min(4, level)}` : '';
    }
    return `level${high > low ? Math.round((8 * (x - low)) / (high - low)) : 0}`;
  }

  /** The place of the note that replaces the middle of a long rollout, as rollouts.py writes it, or -1. */
  const gapOf = (rollout) => (rollout.left_out ? rollout.pieces.indexOf(` [... ${whole(rollout.left_out)} characters left out ...] `) : -1);

  function describe(rollout, i) {
    const gap = gapOf(rollout);
    if (i === gap) return ['the middle of this text is not in this file'];
    const others = rollout.environment ?? []; // places of the environment's texts, each one piece
    if (others.includes(i)) return ['text of the environment, which is not trained on'];
    const place = gap >= 0 && i > gap ? rollout.length - (rollout.pieces.length - 1 - i) : i + 1 - others.filter((other) => other < i).length;
    const whole = others.length ? rollout.pieces.length - others.length : rollout.length;
    const parts = [`token ${place} of ${Math.max(whole, place)}${others.length ? ' of the policy' : ''}`];
    const at = (list) => list?.[i];
    if (known(at(rollout.logprobs))) parts.push(`log-prob ${short(at(rollout.logprobs))} (probability ${percent(Math.exp(at(rollout.logprobs)))})`);
    const advantage = rollout.advantages ? at(rollout.advantages) : rollout.advantage;
    if (known(advantage)) parts.push(`advantage ${signed(advantage)}`);
    if (known(at(rollout.values))) parts.push(`value ${short(at(rollout.values))}`);
    return parts;
  }

  /** What the shades mean, in steps from least to most. */
  function legend(kind, group) {
    const swatch = (name, text) => h('span', { class: 'swatch' }, h('span', { class: `token ${name}`, 'aria-hidden': 'true' }, ' a '), text);
    if (kind === 'logprob') return [swatch('level0', 'certain'), swatch('level3', '−1'), swatch('level5', '−3'), swatch('level8', 'below −8')];
    const [low, high] = extent(group, kind);
    if (low === high) return [h('span', {}, `every one is ${KINDS[kind].write(low)}`)];
    if (kind === 'advantage') {
      const size = Math.max(Math.abs(low), Math.abs(high));
      return [swatch('less4', signed(-size)), swatch('less2', signed(-size / 2)), swatch('', '0'), swatch('more2', signed(size / 2)), swatch('more4', signed(size))];
    }
    return [swatch('level0', short(low)), swatch('level4', short((low + high) / 2)), swatch('level8', short(high))];
  }

  function piece(text, from, to, marks) {
    if (from === to) return h('span', { class: 'escape' }, '∅'); // a token without text, as one that ends the answer
    const made = foreign.marked(text, marks, from, to);
    return text.slice(from, to).includes('\n') ? made.flatMap((node) => (typeof node === 'string' ? breaks(node) : [node])) : made;
  }

  /** A line break that is part of a token is seen. */
  const breaks = (text) => text.split(/(\n)/).flatMap((part) => (part === '\n' ? [h('span', { class: 'break', 'aria-hidden': 'true' }, '⏎'), '\n'] : part ? [part] : []));

  /** The block of tokens, or of plain text if the tokens are not known. `onToken` is called with the token in focus. */
  function block(item, { kind, figures, pattern, onToken, label, fold = SHOWN }) {
    const { rollout, group } = item;
    if (!rollout.pieces && typeof rollout.text !== 'string') return h('p', { class: 'nothing' }, 'The text of this rollout was not logged.');
    if (!rollout.pieces) return foreign.block(model.textOf(rollout), pattern, { label });
    const text = model.textOf(rollout);
    const marks = foreign.places(text, pattern);
    const numbers = kind && KINDS[kind] ? KINDS[kind].of(rollout) : null;
    const scale = numbers && extent(group, kind);
    const gap = gapOf(rollout);
    const others = new Set(rollout.environment ?? []);
    const body = h('div', { class: `foreign tokens${figures && numbers ? ' figures' : ''}`, role: 'group', 'aria-label': label });
    let [shown, at, mark] = [0, 0, 0];
    const add = (most) => {
      const made = [];
      for (const end = Math.min(shown + most, rollout.pieces.length); shown < end; shown += 1) {
        const to = at + rollout.pieces[shown].length;
        while (mark < marks.length && marks[mark][1] <= at) mark += 1;
        const own = mark < marks.length && marks[mark][0] < to ? marks.slice(mark, mark + 50) : [];
        const x = numbers?.[shown];
        made.push(h('span', { class: `token ${shown === gap ? 'left-out' : others.has(shown) ? 'environment' : numbers ? shade(kind, x, scale) : ''}`, 'data-i': shown, tabindex: shown ? -1 : 0, 'aria-label': others.has(shown) ? `environment: ${foreign.line(rollout.pieces[shown], 200)}` : null, 'data-figure': figures && numbers && !others.has(shown) ? KINDS[kind].write(x) : null }, piece(text, at, to, own)));
        at = to;
      }
      body.append(...made);
    };
    add(rollout.pieces.length > 1.2 * fold ? fold : rollout.pieces.length);
    listen(body, rollout, onToken);
    if (shown === rollout.pieces.length) return body;
    return h('div', {}, body, foreign.unfold(`show all (${rollout.pieces.length.toLocaleString('en-US')} tokens)`, () => { add(PIECE); return shown < rollout.pieces.length; }));
  }

  function listen(body, rollout, onToken) {
    const notify = (event) => {
      const token = event.target.closest?.('.token');
      if (token) onToken(describe(rollout, Number(token.dataset.i)), rollout.pieces[Number(token.dataset.i)], token);
    };
    body.addEventListener('mouseover', notify);
    body.addEventListener('focusin', notify);
    body.addEventListener('click', (event) => event.target.closest('.token')?.focus());
    body.addEventListener('keydown', (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const token = by && event.target.closest('.token');
      if (!token) return;
      event.preventDefault();
      event.stopPropagation(); // the arrows that turn to another rollout
      const next = by > 0 ? token.nextElementSibling : token.previousElementSibling;
      if (!next) return;
      token.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  }

  /** A line with the numbers of the token in focus, and the `onToken` that fills it. */
  function readout() {
    const element = h('p', { class: 'readout', role: 'status' }, 'Hover, touch or focus a token to read its numbers.');
    let last = null;
    const onToken = (parts, text, token) => {
      last?.classList.remove('looked-at');
      last = token;
      token.classList.add('looked-at');
      show(element, h('code', {}, foreign.line(text, 40) || '∅'), ' ', parts.join(' · '));
    };
    return { element, onToken };
  }

  winnow.tokens = { block, kinds, legend, readout, shade, KINDS };
})();
