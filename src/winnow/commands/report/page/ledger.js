'use strict';
/** Where the tokens went: each bar is as long as its share of what was generated, on one scale for all runs. */
(() => {
  const { h, table } = winnow.dom;
  const { compact, whole, percent, known } = winnow.numbers;
  const { model, curves, foreign } = winnow;

  const most = () => Math.max(1, ...model.runs.flatMap((run) => (run.ledger ?? []).map((entry) => entry.tokens ?? 0)));

  /**
   * The bar of an entry. Where its tokens are not counted it is hollow, and as long as its share of the rollouts would
   * be: a share of the tokens may be another.
   */
  function bar(entry, generated, scale) {
    const tokens = known(entry.tokens) ? entry.tokens : null;
    const ofRollouts = tokens === null && generated?.rollouts ? (entry.rollouts ?? 0) / generated.rollouts : null;
    const long = tokens ?? (ofRollouts ?? 0) * (generated?.tokens ?? 0);
    const fill = h('div', { class: `fill ${tokens === null ? 'hollow' : /^[a-z]+$/.test(entry.label) ? entry.label : ''}`, hidden: !long });
    fill.style.width = `${Math.min(100, Math.max(0, (100 * long) / scale))}%`;
    const share = ofRollouts ?? entry.share;
    return h('li', {}, h('span', { class: 'label' }, foreign.line(entry.label, 40)), h('div', { class: 'track', 'aria-hidden': 'true' }, fill),
      h('span', { class: 'amount' }, tokens === null ? `${compact(entry.rollouts)} rollouts` : `${compact(tokens)} tokens`, known(share) ? h('b', {}, ` ${percent(share)}`) : null),
      entry.note ? h('span', { class: 'note' }, foreign.line(entry.note, 300)) : null);
  }

  function one(run, i, scale) {
    const entries = run.ledger ?? [];
    const rows = entries.map((e) => [foreign.line(e.label, 40), whole(e.tokens), whole(e.rollouts), percent(e.share), foreign.line(e.note ?? '', 300)]);
    return h('article', { 'aria-label': `budget of ${curves.name(i)}` }, model.several ? h('h3', {}, curves.name(i)) : null,
      h('ul', { class: 'ledger' }, entries.map((entry) => bar(entry, entries[0], scale))),
      h('details', { class: 'values' }, h('summary', {}, 'as a table'), table('budget ledger', ['', 'tokens', 'rollouts', 'of generated', 'note'], rows, 'numbers')));
  }

  function section() {
    if (!model.runs.some((run) => run.ledger?.length)) return null;
    const scale = most();
    const valued = model.runs.some((run) => run.ledger?.some((entry) => entry.label === 'valued'));
    return h('section', { 'aria-labelledby': 'title-budget' }, h('h2', { id: 'title-budget' }, 'Budget'),
      h('p', { class: 'note' }, `Where the tokens went. Each line is a share of what was generated; only what was trained taught the policy${valued ? ', and what was valued the value model' : ''}.`),
      h('div', { class: 'ledgers' }, model.runs.map((run, i) => one(run, i, scale))));
  }

  winnow.ledger = { section };
})();
