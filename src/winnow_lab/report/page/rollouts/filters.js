'use strict';
/** Which rollouts are listed: the tests of the filters, the search, the order, and the form in which they are set. */
(() => {
  const { h, show, button, option } = winnow.dom;
  const { count, whole, known } = winnow.numbers;
  const { model, place } = winnow;
  const VERDICTS = ['correct', 'wrong', 'unparsable', 'failed', 'cut'];
  const SIGNS = { correct: '✓', wrong: '✗', unparsable: '?', failed: '!', cut: '…' };
  const CLEAR = { run: '', step: '', verdict: '', kept: '', trained: '', reason: '', end: '', rmin: '', rmax: '', lmin: '', lmax: '', q: '' };
  const ORDERS = { // label, sort key, and whether the largest comes first
    '': ['as sampled', null, 1],
    'reward-high': ['highest reward first', (r) => r.reward, -1],
    'reward-low': ['lowest reward first', (r) => r.reward, 1],
    'advantage-high': ['highest advantage first', (r) => model.advantageOf(r), -1],
    'advantage-low': ['lowest advantage first', (r) => model.advantageOf(r), 1],
    'length-high': ['longest first', (r) => r.length, -1],
    'length-low': ['shortest first', (r) => r.length, 1],
    'surprise': ['least likely first (mean log-prob)', (r) => mean(r.logprobs), 1],
  };

  /** The mean of the numbers in a list: tokens of an environment have no log-prob. */
  const mean = (list) => {
    const own = (list ?? []).filter(known);
    return own.length ? own.reduce((a, b) => a + b, 0) / own.length : null;
  };
  const number = (text) => (text.trim() === '' || Number.isNaN(Number(text)) ? null : Number(text));

  /**
   * The search as a pattern that ignores case, or null. No character is special, unless the text is a regular expression
   * (`expression`): one that is invalid matches nothing.
   */
  function pattern(text, expression = false) {
    if (!text) return null;
    try {
      return new RegExp(expression ? text : text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&'), 'giu');
    } catch {
      return /(?!)/gu;
    }
  }

  /** The search of a place. */
  const sought = (at) => pattern(at.q, at.re === '1');

  /** Why a text is no regular expression; '' where it is one. */
  function fault(text) {
    try { return RegExp(text, 'u') && ''; } catch (error) { return error.message; }
  }

  /** A box for regular expressions beside a search, and `mark`, which says on the search what is wrong with its text. */
  function expressions(search, change) {
    const box = h('input', { type: 'checkbox', 'aria-label': 'regular expression', on: { change: () => change(box.checked) } });
    function mark(on) {
      box.checked = on;
      const wrong = on ? fault(search.value) : '';
      search.setAttribute('aria-invalid', String(Boolean(wrong)));
      search.title = winnow.foreign.line(wrong, 200);
    }
    return { box, element: h('label', { class: 'inline', title: 'the search is a regular expression, such as \\d+ apples' }, box, ' regex'), mark };
  }

  const within = (x, low, high) =>
    (low === null || (x !== null && x >= low)) && (high === null || (x !== null && x <= high));

  /** Whether an item passes. `skip` names one filter that is left out: the histogram shows what its own would hide. */
  function test(at, skip) {
    const verdicts = at.verdict ? new Set(at.verdict.split(',')) : null;
    const [rmin, rmax, lmin, lmax] = ['rmin', 'rmax', 'lmin', 'lmax'].map((key) => number(at[key]));
    const searched = sought(at);
    const matches = (text) => { searched.lastIndex = 0; return searched.test(text); };
    let group = null;
    let inGroup = false; // a prompt is searched once, not once for each rollout
    return ({ run, step, group: own, rollout }) => {
      if (at.run && run !== Number(at.run)) return false;
      if (at.step && step !== Number(at.step)) return false;
      if (verdicts && !verdicts.has(rollout.kind)) return false;
      if (at.kept && rollout.kept !== (at.kept === 'yes')) return false;
      if (at.trained && rollout.trained !== (at.trained === 'yes')) return false;
      if (at.reason && rollout.reason !== at.reason) return false;
      if (at.end && (rollout.finish === 'length') !== (at.end === 'cut')) return false;
      if (skip !== 'reward' && !within(rollout.reward, rmin, rmax)) return false;
      if (!within(rollout.length, lmin, lmax)) return false;
      if (!searched) return true;
      if (own !== group) {
        group = own;
        inGroup = matches(own.prompt) || matches(own.prompt_id) || matches(model.asText(own.answer));
      }
      return inGroup || matches(model.textOf(rollout));
    };
  }

  /** The items that pass, in the order that was chosen. */
  function chosen(at) {
    const list = model.items.filter(test(at));
    const [, key, sign] = ORDERS[Object.hasOwn(ORDERS, at.sort) ? at.sort : ''];
    if (!key) return list;
    const known = (item) => { const x = key(item.rollout); return typeof x === 'number' ? sign * x : Infinity; }; // unknown: last
    const keys = new Map(list.map((item) => [item, known(item)]));
    return list.sort((a, b) => keys.get(a) - keys.get(b) || 0);
  }

  const active = (at) => Object.keys(CLEAR).filter((key) => at[key]);

  const field = (label, input) => h('label', { class: 'field' }, h('span', {}, label), input);

  const set = (key) => (event) => place.go({ [key]: event.target.value });

  function pick(label, key, choices) {
    return field(label, h('select', { 'data-key': key, on: { change: set(key) } }, choices.map(([value, text]) => option(value, text))));
  }

  function range(label, low, high) {
    const input = (key, name) => h('input', { type: 'number', step: 'any', inputmode: 'decimal', 'data-key': key, 'aria-label': `${label}, ${name}`, placeholder: name, on: { change: set(key) } });
    return h('div', { class: 'field', role: 'group', 'aria-label': label }, h('span', {}, label), h('span', { class: 'range' }, input(low, 'least'), '–', input(high, 'most')));
  }

  function toggle(kind) {
    return h('button', { type: 'button', class: `toggle ${kind}`, 'data-verdict': kind, 'aria-pressed': 'false', on: { click: () => {
      const on = new Set(place.get().verdict.split(',').filter(Boolean));
      if (!on.delete(kind)) on.add(kind);
      place.go({ verdict: VERDICTS.filter((name) => on.has(name)).join(',') });
    } } }, h('span', { 'aria-hidden': 'true' }, `${SIGNS[kind]} `), kind);
  }

  /** Steps that can be chosen: of all runs, with what is here of each. */
  function steps() {
    const all = new Map();
    model.runs.forEach((run, i) => (run.steps ?? []).forEach((s) => {
      const known = all.get(s.step) ?? { rollouts: 0, included: 0, here: false };
      known.rollouts += s.rollouts;
      known.included += s.included;
      known.here ||= !model.served || model.loaded.has(`${i}/${s.step}`);
      all.set(s.step, known);
    }));
    return [...all].sort(([a], [b]) => a - b).filter(([, s]) => model.served || s.included).map(([step, s]) => [String(step),
      `step ${step} · ${model.served ? `${whole(s.rollouts)} rollouts${s.here ? '' : ', not loaded'}` : s.included === s.rollouts ? count(s.included, 'rollout') : `${whole(s.included)} of ${whole(s.rollouts)} rollouts`}`]);
  }

  function reasons() {
    const counts = new Map();
    for (const { rollout } of model.items) counts.set(rollout.reason, (counts.get(rollout.reason) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]).map(([reason, n]) => [reason, `${winnow.foreign.line(reason ?? '', 60)} (${whole(n)})`]);
  }

  /** The form, and `update`, which sets it to the place and to what is loaded. */
  function form() {
    const search = h('input', { type: 'search', id: 'search', 'data-key': 'q', placeholder: 'search texts and prompts  ( / )', 'aria-label': 'search in texts and prompts', spellcheck: 'false', autocomplete: 'off' });
    const regular = expressions(search, (on) => place.go({ re: on ? '1' : '' }));
    let timer;
    search.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(() => place.go({ q: search.value }), 120); });
    const step = pick('step', 'step', []);
    const reason = pick('trained, or why not', 'reason', []);
    const clear = button('clear filters', () => place.go(CLEAR), { class: 'quiet' });
    const more = h('details', { class: 'more' }, h('summary', {}, 'more filters'),
      h('div', { class: 'fields' },
        model.several ? pick('run', 'run', [['', 'all runs'], ...model.runs.map((run, i) => [String(i), winnow.foreign.line(run.name, 60)])]) : null,
        pick('kept', 'kept', [['', 'kept or not'], ['yes', 'kept by the selectors'], ['no', 'not kept']]),
        pick('trained', 'trained', [['', 'trained or not'], ['yes', 'trained on'], ['no', 'not trained on']]), reason,
        pick('end', 'end', [['', 'any end'], ['cut', 'cut off at the limit'], ['stop', 'ended by itself']]),
        range('reward', 'rmin', 'rmax'), range('tokens', 'lmin', 'lmax'),
        pick('order', 'sort', Object.entries(ORDERS).map(([key, [text]]) => [key, text]))));
    const element = h('form', { class: 'filters', role: 'search', 'aria-label': 'filter rollouts', on: { submit: (e) => e.preventDefault() } },
      h('div', { class: 'search' }, search, regular.element), h('div', { class: 'toggles', role: 'group', 'aria-label': 'verdict' }, VERDICTS.map(toggle)), step, more);

    function update(at) {
      show(step.querySelector('select'), option('', model.served ? 'all loaded steps' : 'all steps'), steps().map(([value, text]) => option(value, text)));
      show(reason.querySelector('select'), option('', 'any'), reasons().map(([value, text]) => option(value, text)));
      for (const input of element.querySelectorAll('[data-key]')) {
        if (input !== document.activeElement || input.type !== 'search') input.value = at[input.dataset.key];
      }
      regular.mark(at.re === '1');
      for (const box of element.querySelectorAll('[data-verdict]')) box.setAttribute('aria-pressed', String(at.verdict.split(',').includes(box.dataset.verdict)));
      more.querySelector('summary').textContent = `more filters${hidden(at) ? ` (${hidden(at)} set)` : ''}`;
    }
    const hidden = (at) => active(at).filter((key) => !['q', 'verdict', 'step'].includes(key)).length + (at.sort ? 1 : 0);
    return { element, search, clear, update };
  }

  winnow.filters = { test, chosen, pattern, sought, expressions, active, form, VERDICTS, SIGNS, CLEAR };
})();

/** The rewards of what is listed, as bars: a bar is a button that keeps only its rewards. */
(() => {
  const { h, svg, show } = winnow.dom;
  const { short, whole, count } = winnow.numbers;
  const { place, model, filters } = winnow;
  const BINS = 12;

  /**
   * [{low, high, least, most, n}]: one bin per value where there are few, else equal widths, of which the last holds its
   * upper end. `least` and `most` of its values are the ends of a filter that leaves exactly these.
   */
  function bins(values, most = BINS) {
    const distinct = [...new Set(values)].sort((a, b) => a - b);
    if (!distinct.length) return [];
    if (distinct.length <= most) {
      const sizes = new Map();
      for (const x of values) sizes.set(x, (sizes.get(x) ?? 0) + 1);
      return distinct.map((x) => ({ low: x, high: x, least: x, most: x, n: sizes.get(x) }));
    }
    const low = distinct[0];
    const width = (distinct.at(-1) - low) / most;
    const made = Array.from({ length: most }, (_, i) => ({ low: low + i * width, high: low + (i + 1) * width, least: Infinity, most: -Infinity, n: 0 }));
    for (const x of values) {
      const bin = made[Math.min(most - 1, Math.floor((x - low) / width))];
      Object.assign(bin, { least: Math.min(bin.least, x), most: Math.max(bin.most, x), n: bin.n + 1 });
    }
    return made;
  }

  function draw(element, at) {
    const passing = model.items.filter(filters.test(at, 'reward'));
    const rewards = passing.map((item) => item.rollout.reward).filter((x) => x !== null);
    const made = bins(rewards);
    const top = Math.max(1, ...made.map((bin) => bin.n));
    const bars = made.map((bin) => {
      const [low, high] = [String(bin.least), String(bin.most)];
      const on = at.rmin === low && at.rmax === high;
      const name = bin.low === bin.high ? short(bin.low) : `${short(bin.low)} to ${short(bin.high)}`;
      const tall = bin.n ? Math.max(2, (40 * bin.n) / top) : 0;
      return h('button', { type: 'button', class: 'bar', disabled: !bin.n, 'aria-pressed': String(on), title: `reward ${name}: ${count(bin.n, 'rollout')}`, 'aria-label': `reward ${name}: ${count(bin.n, 'rollout')}`,
        on: { click: () => place.go(on ? { rmin: '', rmax: '' } : { rmin: low, rmax: high }) } },
      h('span', { class: 'n', 'aria-hidden': 'true' }, made.length <= 6 ? whole(bin.n) : ''),
      svg('svg', { viewBox: '0 0 10 40', preserveAspectRatio: 'none', 'aria-hidden': 'true', class: 'tall' }, svg('rect', { x: 0, y: 40 - tall, width: 10, height: tall })),
      h('span', { class: 'x', 'aria-hidden': 'true' }, short(bin.low)));
    });
    const none = passing.length - rewards.length;
    show(element, h('div', { class: 'bars', role: 'group', 'aria-label': 'rewards: choose a bar to list only those rollouts' }, bars),
      none ? h('p', { class: 'note' }, `${count(none, 'rollout')} without a reward`) : null);
  }

  winnow.histogram = { bins, draw };
})();
