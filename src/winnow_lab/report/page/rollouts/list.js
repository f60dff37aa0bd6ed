'use strict';
/** What is known of one rollout beside its text: verdict, reward and its parts, advantage, whether it was trained on. */
(() => {
  const { h, button } = winnow.dom;
  const { short, signed, whole, known } = winnow.numbers;
  const { filters, foreign, model } = winnow;

  const badge = (r) => h('span', { class: `badge ${r.kind}` }, h('span', { 'aria-hidden': 'true' }, `${filters.SIGNS[r.kind] ?? ''} `), r.kind);

  /** What became of it: "trained", "kept, not trained", "not kept"; the selectors keep, and of what they keep some is trained. */
  const became = (r) => (r.trained ? 'trained' : r.kept ? 'kept, not trained' : 'not kept');
  const SIGNS = { trained: '●', 'kept, not trained': '◐', 'not kept': '○' };
  const sign = (r) => SIGNS[became(r)];

  /** Whether the selectors kept it; whether it reached the update, or why not. */
  const fate = (r) => [
    h('span', { class: `badge ${r.kept ? 'kept' : 'dropped'}` }, r.kept ? 'kept' : 'not kept'),
    h('span', { class: `badge ${r.trained ? 'trained' : 'dropped'}` }, h('span', { 'aria-hidden': 'true' }, `${sign(r)} `), r.trained ? 'trained' : `not trained: ${foreign.line(r.reason || 'unknown', 80)}`),
  ];

  const cut = (r) => (r.finish === 'length' ? h('span', { class: 'badge cut' }, h('span', { 'aria-hidden': 'true' }, '✂ '), 'cut off') : null);

  const fact = (name, value) => (value === null ? null : h('div', { class: 'fact' }, h('dt', {}, name), h('dd', {}, value)));

  /** The reward's parts, "answer 1 + format 0.5", where there is more than one. */
  function parts(r) {
    const list = Object.entries(r.parts ?? {});
    return list.length > 1 || (list.length === 1 && list[0][1] !== r.reward) ? list.map(([name, x]) => `${foreign.line(name, 40)} ${short(x)}`).join(', ') : null;
  }

  function facts(item) {
    const r = item.rollout;
    const given = (text, limit) => (text === null || text === undefined || text === '' ? null : h('code', {}, foreign.line(model.asText(text), limit)));
    return h('dl', { class: 'facts' },
      fact('reward', short(r.reward)), fact('parts', parts(r)), fact(r.advantages ? 'advantage (mean over tokens)' : 'advantage', signed(model.advantageOf(r))),
      fact('weight in the loss', known(r.weight) ? short(r.weight) : null), fact('tokens', whole(r.length)),
      fact('answer found', given(r.extracted, 200)), fact('expected', given(item.group.answer, 200)),
      fact('verifier', r.cause ? `failed: ${foreign.line(r.cause, 40)}` : known(r.seconds) && r.seconds >= 0.1 ? `${short(r.seconds)} s` : null),
      fact('detail', given(r.detail, 400)));
  }

  /** All rollouts of a group as small buttons. */
  function strip(group, current, choose, label) {
    return h('div', { class: 'strip', role: 'group', 'aria-label': label }, group.rollouts.map((r) =>
      button([h('span', { 'aria-hidden': 'true' }, filters.SIGNS[r.kind] ?? '·'), h('span', { 'aria-hidden': 'true' }, known(r.reward) ? short(r.reward) : '–')], () => choose(r), {
        class: `chip ${r.kind}${r.kept ? '' : ' dropped'}`, 'aria-current': r === current ? 'true' : null, title: `rollout ${r.index}: ${r.kind}, ${r.trained ? 'trained' : `${r.kept ? 'kept, ' : ''}${r.reason}`}`.slice(0, 120),
        'aria-label': `rollout ${r.index}: ${r.kind}, reward ${short(r.reward)}, ${became(r)}`,
      })));
  }

  winnow.facts = { badge, became, sign, fate, cut, facts, strip };
})();

/**
 * The list of rollouts under their steps and prompts. Only the rows in view are elements, so ten thousand rollouts
 * cost as much as fifty. It is a list box: arrows move in it, and its options carry what the eye would see as names.
 */
(() => {
  const { h } = winnow.dom;
  const { short, signed, count, whole } = winnow.numbers;
  const { facts, filters, foreign, model } = winnow;
  const HEIGHT = { step: 30, group: 44, rollout: 30 };
  const SPARE = 8; // rows drawn above and below what is seen

  /** Rows of a list: a heading where the step or the prompt changes, unless the order is not the log's. */
  function rowsOf(items, sorted) {
    const rows = [];
    let last = null;
    items.forEach((item, index) => {
      const turn = !last || last.step !== item.step || last.run !== item.run;
      if (!sorted && turn) rows.push({ kind: 'step', item });
      if (!sorted && (turn || last.group !== item.group)) rows.push({ kind: 'group', item });
      rows.push({ kind: 'rollout', item, index });
      last = item;
    });
    return rows;
  }

  const runName = (item) => (model.several ? `${foreign.line(model.runs[item.run].name, 40)} · ` : '');

  function heading({ kind, item }) {
    if (kind === 'step') return h('div', { class: 'row step', role: 'presentation' }, `${runName(item)}step ${item.step}`);
    const { group } = item;
    return h('div', { class: 'row group', role: 'presentation', title: foreign.line(group.prompt, 600) },
      h('span', { class: 'prompt' }, foreign.line(model.ownPrompt(item), 160)),
      h('span', { class: 'id' }, `mean reward ${short(group.mean_reward)} · ${count(group.count, 'rollout')} · ${foreign.line(group.prompt_id, 60)}`));
  }

  function describe(item) {
    const r = item.rollout;
    return `${runName(item)}step ${item.step}, prompt ${foreign.line(item.group.prompt_id, 60)}, rollout ${r.index}: ${r.kind}, reward ${short(r.reward)}, ` +
      `advantage ${signed(model.advantageOf(r))}, ${count(r.length, 'token')}${r.finish === 'length' ? ', cut off' : ''}, ${facts.became(r)}`;
  }

  /** A line of the text, from the first match of the search. */
  function snippet(item, pattern) {
    const text = model.textOf(item.rollout);
    const [first] = foreign.places(text, pattern, 1);
    const from = first && first[0] > 16 ? first[0] - 8 : 0; // in a narrow line, the match comes first
    const part = text.slice(from, from + 160);
    const { extracted } = item.rollout;
    return h('span', { class: 'snippet' }, extracted && !first ? h('b', {}, foreign.line(model.asText(extracted), 24), ' ') : null, from ? '…' : '', foreign.marked(part.replace(/\n/g, '⏎'), foreign.places(part, pattern)));
  }

  function option(row, state) {
    const { item, index } = row;
    const r = item.rollout;
    const on = item === state.current;
    return h('div', { class: `row rollout${r.kept ? '' : ' dropped'}`, role: 'option', id: `row-${index}`, 'data-index': index, 'aria-selected': String(on), 'aria-posinset': index + 1, 'aria-setsize': state.items.length, 'aria-label': describe(item) },
      h('span', { class: `verdict ${r.kind}`, title: r.kind }, filters.SIGNS[r.kind] ?? '·'),
      h('span', { class: 'number reward', title: 'reward' }, short(r.reward)),
      h('span', { class: 'number advantage', title: 'advantage' }, signed(model.advantageOf(r))),
      h('span', { class: 'number length', title: r.finish === 'length' ? 'tokens, cut off' : 'tokens' }, `${whole(r.length)}${r.finish === 'length' ? '✂' : ''}`),
      h('span', { class: 'became', title: r.trained ? 'trained' : `${facts.became(r)}: ${foreign.line(r.reason ?? '', 80)}` }, facts.sign(r)),
      snippet(item, state.pattern));
  }

  /** {element, set(items, current, at), move(by, kind)} */
  function make(choose) {
    const canvas = h('div', { class: 'canvas' });
    const element = h('div', { class: 'list', role: 'listbox', tabindex: 0, 'aria-label': 'rollouts', id: 'list' }, canvas);
    const state = { items: [], rows: [], tops: [], current: null, pattern: null };

    function draw() {
      const from = Math.max(0, first(element.scrollTop) - SPARE);
      const to = Math.min(state.rows.length, first(element.scrollTop + (element.clientHeight || 600)) + SPARE);
      const made = state.rows.slice(from, to).map((row, i) => {
        const drawn = row.kind === 'rollout' ? option(row, state) : heading(row);
        drawn.style.top = `${state.tops[from + i]}px`;
        return drawn;
      });
      canvas.replaceChildren(...made);
      const at = state.rows.slice(from, to).find((row) => row.kind === 'rollout' && row.item === state.current);
      if (at) element.setAttribute('aria-activedescendant', `row-${at.index}`);
      else element.removeAttribute('aria-activedescendant');
    }

    /** The row at a height, by halving. */
    function first(y) {
      let [low, high] = [0, state.tops.length - 1];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (state.tops[middle] <= y) low = middle; else high = middle - 1;
      }
      return Math.max(0, low);
    }

    function set(items, current, at) {
      state.items = items;
      state.rows = rowsOf(items, Boolean(at.sort));
      state.pattern = filters.sought(at);
      let top = 0;
      state.tops = state.rows.map((row) => { const own = top; top += HEIGHT[row.kind]; return own; });
      canvas.style.height = `${top}px`;
      mark(current);
    }

    function mark(current, follow = true) {
      state.current = current;
      const i = current ? state.rows.findIndex((row) => row.kind === 'rollout' && row.item === current) : -1;
      if (i >= 0 && follow) {
        const top = state.tops[i];
        const above = HEIGHT.group + HEIGHT.step;
        if (top < element.scrollTop + 4) element.scrollTop = top - above;
        else if (top + HEIGHT.rollout > element.scrollTop + element.clientHeight) element.scrollTop = top - element.clientHeight + 2 * HEIGHT.rollout;
      }
      draw();
    }

    /** The rollout `by` places on, or, by groups, the first of the next group. */
    function step(by, byGroup) {
      const { items, current } = state;
      const i = items.indexOf(current);
      if (i < 0) return items[0] ?? null;
      if (!byGroup) return items[i + by] ?? null;
      let k = i;
      while (items[k] && items[k].group === current.group) k += by;
      if (!items[k]) return null;
      while (by < 0 && items[k - 1]?.group === items[k].group) k -= 1;
      return items[k];
    }

    element.addEventListener('scroll', () => requestAnimationFrame(draw), { passive: true });
    element.addEventListener('click', (event) => {
      const row = event.target.closest('[data-index]');
      if (row) choose(state.items[Number(row.dataset.index)], true);
    });
    new ResizeObserver(draw).observe(element);
    return { element, set, mark, step, state };
  }

  winnow.list = { make, rowsOf, describe, runName };
})();
