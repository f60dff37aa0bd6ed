'use strict';
/** Two models on the same problems: how many rollouts are of which category, and the problems that changed, in full. */
(() => {
  const { h, show, table } = winnow.dom;
  const { percent, whole, short, count, known } = winnow.numbers;
  const { model, foreign } = winnow;

  /** A difference of shares in percentage points: "+27.2". */
  const points = (x) => (known(x) ? `${x > 0 ? '+' : ''}${(100 * x).toFixed(1)}`.replace('-', '−') : '–');
  const cell = (n, share) => `${whole(n)} (${known(share) ? `${(100 * share).toFixed(1)}%` : '–'})`;

  function categories(one) {
    const rows = one.categories.map((of) => [foreign.line(of.label, 60), cell(of.other, of.other_share), cell(of.model, of.model_share), points(of.model_share - of.other_share)]);
    return table(`categories of ${foreign.line(one.task, 60)}, ${foreign.line(one.mode, 20)}`, ['category', 'base', 'trained', 'change, points'], rows, 'numbers categories');
  }

  function answer(name, score, text) {
    return h('div', {}, h('h4', {}, `${name}: ${percent(score)}`), foreign.block(text, null, { label: `answer of the ${name} model`, fold: 2000 }));
  }

  function changed(change) {
    return h('article', { class: 'changed-problem', 'aria-label': `problem ${foreign.line(change.id, 80)}` },
      h('h4', {}, 'question'), foreign.block(change.question, null, { label: 'question', fold: 2000 }),
      h('h4', {}, 'gold'), foreign.block(change.gold, null, { label: 'gold', fold: 500 }),
      h('div', { class: 'answers' }, answer('base', change.other, change.other_answer), answer('trained', change.model, change.model_answer)),
      h('p', { class: 'note' }, foreign.line(change.id, 120)));
  }

  /** The problems of one kind, made when they are first opened: there may be hundreds. */
  function problems(one, better) {
    const own = one.changes.filter((change) => change.better === better);
    const all = better ? one.won : one.lost;
    const body = h('div', { class: 'changed-problems', role: 'region', tabindex: 0, 'aria-label': `${better ? 'better' : 'worse'}: ${foreign.line(one.task, 60)}, ${foreign.line(one.mode, 20)}` });
    const more = own.length < all ? `, of which the ${whole(own.length)} that changed most are here` : '';
    const element = h('details', { class: 'values' }, h('summary', {}, `${better ? 'better' : 'worse'} on ${count(all, 'problem')}${more}`), body);
    element.addEventListener('toggle', () => { if (element.open && !body.firstChild) show(body, own.map(changed)); });
    return own.length ? element : h('p', { class: 'note' }, `${better ? 'better' : 'worse'} on ${count(all, 'problem')}${more}`);
  }

  function comparison(one) {
    const [low, high] = one.interval;
    return h('article', { class: 'comparison', 'aria-label': `${foreign.line(one.task, 60)}, ${foreign.line(one.mode, 20)}` },
      h('h3', {}, `${foreign.line(one.task, 60)}, ${foreign.line(one.mode, 20)}: ${percent(one.other)} → ${percent(one.model)}`),
      h('p', { class: 'note' }, `${points(one.model - one.other)} points (${points(low)} to ${points(high)}), p = ${short(one.p_value)} (paired test over ${count(one.problems, 'problem')})`),
      categories(one), problems(one, true), problems(one, false));
  }

  function pair(compared) {
    return h('div', { class: 'evaluated' },
      h('p', { class: 'note' }, `${foreign.line(compared.name, 120)}: base is `, h('code', {}, foreign.line(compared.models.other, 120)), ', trained is ', h('code', {}, foreign.line(compared.models.model, 120))),
      compared.notes.map((note) => h('p', { class: 'note' }, foreign.line(note, 1000))),
      h('div', { class: 'comparisons' }, compared.comparisons.map(comparison)));
  }

  function section() {
    const all = model.data.evaluations ?? [];
    if (!all.length) return null;
    return h('section', { 'aria-labelledby': 'title-evaluations' }, h('h2', { id: 'title-evaluations' }, 'Base against trained'), all.map(pair));
  }

  winnow.evaluations = { section };
})();
