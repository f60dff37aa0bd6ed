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

/** The sizes that a run has chosen for its steps: what it expected of them, and what came of it. */
(() => {
  const { h, table } = winnow.dom;
  const { short, percent, known, count } = winnow.numbers;
  const { model, curves, foreign } = winnow;
  const HEADS = ['step', 'sizes', 'gain', 'seconds a step', 'flat groups', 'signal'];

  /** "1.2, expected 1.3"; a number that is not known is left out. */
  function came(pair, write) {
    const [expected, measured] = pair ?? [];
    return [known(measured) ? write(measured) : null, known(expected) ? `expected ${write(expected)}` : null].filter(Boolean).join(', ') || '–';
  }

  function one(run, i) {
    const all = run.decisions ?? [];
    if (!all.length) return null;
    const sizes = (d) => foreign.line(d.before === d.after ? `${d.after}, as before` : `${d.before} → ${d.after}`, 120);
    const gain = (d) => (d.reason ? foreign.line(d.reason, 200) : d.before === d.after ? '–' : `${short(d.gain)} (at least ${short(d.least_gain)})`);
    const row = (d) => [short(d.step), sizes(d), gain(d), came(d.came?.seconds, short), came(d.came?.flat, percent), came(d.came?.signal_share, percent)];
    const rows = (of) => table('decisions', HEADS, of.map(row), 'numbers');
    const changes = all.filter((d) => d.before !== d.after);
    const few = changes.length && changes.length < all.length; // most decisions of a long run keep the sizes
    return h('article', { 'aria-label': `sizes of ${curves.name(i)}` }, model.several ? h('h3', {}, curves.name(i)) : null,
      h('p', { class: 'note' }, `${count(all.length, 'decision')}, ${changes.length} of them a change.`), rows(few ? changes : all),
      few ? h('details', { class: 'values' }, h('summary', {}, 'all decisions'), rows(all)) : null);
  }

  function section() {
    const parts = model.runs.map(one).filter(Boolean);
    if (!parts.length) return null;
    return h('section', { 'aria-labelledby': 'title-sizes' }, h('h2', { id: 'title-sizes' }, 'Sizes of the steps'),
      h('p', { class: 'note' }, 'The run chose n rollouts per prompt, m of them in the update, and the prompts of a step. Gain: expected progress per second, relative to the sizes before. Signal: the share of an update\'s squared gradient that is signal. Measured numbers are of the steps after the decision.'), parts);
  }

  winnow.sizes = { section };
})();

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

/** The first view: what was learned for how much, what was wrong, what training changed, the curves, where the tokens went and to which prompts. */
(() => {
  const { h, show } = winnow.dom;
  const { model, place, curves, ledger, allocation, evaluations, foreign } = winnow;

  const arrows = (text) => text.replaceAll('->', '→');

  /** The keys that resumes changed, as numbers before and after may not be comparable; their values are with the configuration. */
  function changed(run) {
    const keys = [...new Set((run.changes ?? []).map((change) => change.key))];
    if (!keys.length) return null;
    const keyList = keys.slice(0, 5).map((key) => foreign.line(key, 80)).join(', ') + (keys.length > 5 ? `, and ${keys.length - 5} more` : '');
    return h('p', { class: 'note changed' }, 'changed at a resume: ', h('a', { href: place.address({ view: 'configuration' }) }, keyList));
  }

  function headline(run, i) {
    return h('article', { class: 'run', 'aria-label': curves.name(i) },
      model.several ? h('h2', {}, curves.name(i)) : null,
      run.subtitle ? h('p', { class: 'subtitle' }, arrows(foreign.line(run.subtitle, 400))) : null,
      changed(run),
      h('dl', { class: 'headline' }, (run.headline ?? []).map((entry) => h('div', {}, h('dt', {}, foreign.line(entry.label, 100)),
        h('dd', {}, h('strong', {}, arrows(foreign.line(entry.value, 60))), entry.detail ? h('span', { class: 'note' }, foreign.line(entry.detail, 400)) : null)))));
  }

  function alarms() {
    const all = model.runs.flatMap((run, i) => (run.alarms ?? []).map((alarm) => ({ ...alarm, run: i })));
    if (!all.length) return null;
    const list = h('ul', { class: 'alarms' });
    const FEW = 8;
    const toRollouts = ({ run, step }) => { const link = curves.toRollouts(step, run); return link && [' · ', link]; };
    const entry = (alarm) => h('li', {}, h('span', { 'aria-hidden': 'true', class: 'sign' }, '▲'), h('div', {},
      h('p', {}, h('strong', {}, foreign.line(alarm.name, 80).replaceAll('_', ' ')), h('span', { class: 'note' }, ` ${model.several ? `${curves.name(alarm.run)}, ` : ''}step ${alarm.step}`, toRollouts(alarm))),
      h('p', {}, foreign.line(alarm.text, 2000))));
    show(list, all.slice(0, FEW).map(entry));
    const rest = all.length > FEW ? winnow.dom.button(`all ${all.length} alarms`, () => { show(list, all.map(entry)); rest.remove(); }, { class: 'unfold' }) : null;
    return h('section', { 'aria-labelledby': 'title-alarms' }, h('h2', { id: 'title-alarms' }, 'Alarms'), list, rest);
  }

  function make() {
    const drawn = curves.section();
    const runs = winnow.runs.section();
    const element = h('div', { class: 'overview' }, runs?.element, h('div', { class: 'heads' }, model.runs.map(headline)), alarms(), evaluations.section(), drawn.element, ledger.section(), winnow.sizes.section(), allocation.section());
    return { element, update: (at) => { runs?.update(at); drawn.update(at); } };
  }

  winnow.overview = { make };
})();
