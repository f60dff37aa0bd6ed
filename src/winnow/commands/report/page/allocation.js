'use strict';
/** How many rollouts prompts got, against how often they were solved: a table whose cells are shaded, so it is its own chart. */
(() => {
  const { h, show } = winnow.dom;
  const { whole, short, percent, count } = winnow.numbers;
  const { model, curves } = winnow;
  const MOST_ROWS = 14;

  /** Never, ten open tenths, always: a group at either end has no signal, so the ends have separate columns. */
  const BINS = ['0', ...Array.from({ length: 10 }, (_, i) => `${i * 10}+`), '100'];
  const binOf = (rate) => (rate <= 0 ? 0 : rate >= 1 ? 11 : 1 + Math.min(9, Math.floor(rate * 10 + 1e-9)));

  /** Row of a count: the count itself where there are few different ones, else ranges of equal width. */
  function rows(counts) {
    const distinct = [...new Set(counts)].sort((a, b) => b - a);
    if (distinct.length <= MOST_ROWS) return { labels: distinct.map(String), of: (n) => distinct.indexOf(n) };
    const [low, high] = [distinct.at(-1), distinct[0]];
    const width = Math.ceil((high - low + 1) / MOST_ROWS);
    const n = Math.ceil((high - low + 1) / width);
    return { labels: Array.from({ length: n }, (_, i) => { const from = low + (n - 1 - i) * width; return width > 1 ? `${from}–${from + width - 1}` : String(from); }), of: (x) => n - 1 - Math.floor((x - low) / width) };
  }

  function tally(entries) {
    const row = rows(entries.map((e) => e.count));
    const cells = row.labels.map(() => BINS.map(() => 0));
    const totals = BINS.map(() => ({ prompts: 0, rollouts: 0 }));
    for (const { pass_rate: rate, count: n } of entries) {
      const bin = binOf(rate);
      cells[row.of(n)][bin] += 1;
      totals[bin].prompts += 1;
      totals[bin].rollouts += n;
    }
    return { labels: row.labels, cells, totals };
  }

  function grid(entries) {
    const { labels, cells, totals } = tally(entries);
    const most = Math.max(...cells.flat());
    const sum = totals.reduce((n, t) => n + t.rollouts, 0);
    const level = (n) => (n ? `level${Math.max(1, Math.round((8 * Math.sqrt(n)) / Math.sqrt(most)))}` : '');
    const cell = (n) => h('td', { class: level(n) || null }, n ? whole(n) : '');
    const foot = (name, of) => h('tr', {}, h('th', { scope: 'row' }, name), totals.map((t) => h('td', {}, t.prompts ? of(t) : '')));
    return h('div', { class: 'scroll', role: 'region', tabindex: 0, 'aria-label': 'rollouts per prompt against pass rate' }, h('table', { class: 'heat' },
      h('caption', { class: 'unseen' }, 'number of groups by pass rate in percent (columns) and rollouts of the group (rows)'),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'rollouts'), BINS.map((bin) => h('th', { scope: 'col' }, bin)))),
      h('tbody', {}, labels.map((label, i) => h('tr', {}, h('th', { scope: 'row' }, label), cells[i].map(cell)))),
      h('tfoot', {}, foot('groups', (t) => whole(t.prompts)), foot('mean rollouts', (t) => short(t.rollouts / t.prompts)), foot('of the budget', (t) => percent(t.rollouts / sum)))));
  }

  function one(run, i) {
    const entries = (run.allocation ?? []).filter((e) => typeof e.pass_rate === 'number' && typeof e.count === 'number');
    if (!entries.length) return null;
    const flat = entries.filter((e) => e.pass_rate <= 0 || e.pass_rate >= 1);
    const spent = (list) => list.reduce((n, e) => n + e.count, 0);
    const skipped = run.prompts_skipped ? ` ${count(run.prompts_skipped, 'prompt')} that the plan gave no rollout ${run.prompts_skipped === 1 ? 'is' : 'are'} not in the table.` : '';
    const all = run.allocation_of ?? entries.length;
    const shown = all > entries.length ? `An even sample of ${count(entries.length, 'group')} of ${whole(all)} with a verdict` : `${count(entries.length, 'group')} with a verdict`;
    return h('article', { 'aria-label': `allocation of ${curves.name(i)}` }, model.several ? h('h3', {}, curves.name(i)) : null,
      h('p', { class: 'note' }, `${shown}; ${percent(spent(flat) / spent(entries))} of their rollouts went to prompts that were always or never solved.${skipped}`), grid(entries));
  }

  function section() {
    const parts = model.runs.map(one).filter(Boolean);
    if (!parts.length) return null;
    return h('section', { 'aria-labelledby': 'title-allocation' }, h('h2', { id: 'title-allocation' }, 'Allocation'),
      h('p', { class: 'note' }, 'How many groups (a prompt in a step) got so many rollouts (rows) and were solved so often, in percent (columns: 0 is never, 0+ is more than never and less than 10, 100 is always). The rate is that of the group\'s rollouts: with few of them it is a noisy estimate for the prompt.'), show(h('div', { class: 'allocations' }), parts));
  }

  winnow.allocation = { section, tally };
})();
