'use strict';
/** Several runs as a table: what each reached and spent, and the keys in which they differ. A head sorts by its column. */
(() => {
  const { h, show } = winnow.dom;
  const { known, short, percent, compact, whole } = winnow.numbers;
  const { model, place, axes, foreign } = winnow;
  const MOST_KEYS = 6; // columns of the configuration

  const values = (run, name) => axes.column(run, name).y;
  const sum = (run, names) => names.flatMap((name) => values(run, name)).reduce((total, y) => (total ?? 0) + y, null);

  /** The accuracies of the comparable evaluations on held-out problems. */
  function heldOut(run) {
    const { x, y } = axes.column(run, 'eval/accuracy_sampled');
    return run.held_out_since === null ? [] : y.filter((_, i) => x[i] >= (run.held_out_since ?? 0));
  }

  /** The mean of the last tenth of the steps. */
  function lately(run, name) {
    const all = values(run, Object.hasOwn(run.metrics?.columns ?? {}, `${name}_of_prompts`) ? `${name}_of_prompts` : name);
    const some = all.slice(-Math.max(1, Math.floor(all.length / 10)));
    return some.length ? some.reduce((a, b) => a + b, 0) / some.length : null;
  }

  const MEASURED = [ // head, value of a run, how it is written
    ['steps', (run) => Math.max(values(run, 'seconds/step').length, values(run, 'reward/mean').length), whole],
    ['held-out accuracy', (run) => heldOut(run).at(-1) ?? null, percent],
    ['best of it', (run) => heldOut(run).reduce((most, y) => Math.max(most ?? y, y), null), percent],
    ['training accuracy', (run) => lately(run, 'reward/accuracy'), percent],
    ['training reward', (run) => lately(run, 'reward/mean'), short],
    ['tokens sampled', (run) => sum(run, ['budget/tokens_generated', 'budget/probe_tokens']), compact],
    ['tokens trained', (run) => sum(run, ['budget/tokens_trained']), compact],
    ['seconds', (run) => sum(run, ['seconds/step', 'seconds/probe']), compact],
  ];

  /** [head, [value of each run], how it is written]; columns without any value are left out. */
  function columns() {
    const measured = MEASURED.map(([head, of, write]) => [head, model.runs.map(of), write]);
    const flat = model.runs.map((run) => winnow.configuration.flatten(run.config ?? {}));
    const keys = [...new Set(flat.flatMap((one) => [...one.keys()]))].filter((key) => key !== 'output' && new Set(flat.map((one) => one.get(key))).size > 1);
    const written = (text) => foreign.line(String(text ?? '–'), 40);
    const differing = keys.slice(0, MOST_KEYS).map((key) => [key, flat.map((one) => { const text = one.get(key); return text !== undefined && text !== '' && known(Number(text)) ? Number(text) : text ?? null; }), written]);
    return [['run', model.runs.map((run) => run.name), written], ...measured.filter(([, all]) => all.some((x) => x !== null)), ...differing];
  }

  /** The order of runs by a column: numbers by size, other texts by letters, what is missing last. */
  function order(all, sign) {
    const compare = (a, b) => (known(a) && known(b) ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true }));
    return all.map((_, i) => i).sort((a, b) => (all[a] === null) - (all[b] === null) || (all[a] === null ? 0 : sign * compare(all[a], all[b])) || a - b);
  }

  /** `by` is the number of a column from 1, negative for the largest first; anything else is the order of the runs. */
  function section() {
    if (!model.several) return null;
    const own = columns();
    const body = h('tbody');
    const heads = own.map(([head], i) => h('th', { scope: 'col', 'aria-sort': 'none' }, h('button', { type: 'button', class: 'quiet', on: { click: () => {
      const by = Number(place.get().by);
      place.go({ by: String(by === -(i + 1) ? i + 1 : by === i + 1 ? -(i + 1) : i ? -(i + 1) : 1) }); // numbers: the largest first
    } } }, foreign.line(head, 60))));
    const element = h('section', { 'aria-labelledby': 'title-runs', class: 'run-table' }, h('h2', { id: 'title-runs' }, 'Runs'),
      h('div', { class: 'scroll', role: 'region', tabindex: 0, 'aria-label': 'table of runs' }, h('table', { class: 'numbers' }, h('caption', { class: 'unseen' }, 'runs'), h('thead', {}, h('tr', {}, heads)), body)));

    function update(at) {
      const by = Number(at.by);
      const column = own[Math.abs(by) - 1] ? Math.abs(by) - 1 : null;
      heads.forEach((head, i) => head.setAttribute('aria-sort', i !== column ? 'none' : by > 0 ? 'ascending' : 'descending'));
      const runs = column === null ? model.runs.map((_, i) => i) : order(own[column][1], Math.sign(by));
      show(body, runs.map((run) => h('tr', {}, own.map(([, all, write], i) => (i ? h('td', {}, write(all[run])) : h('th', { scope: 'row' }, winnow.curves.dot(run), write(all[run])))))));
    }
    update(place.get());
    return { element, update };
  }

  winnow.runs = { section, columns, order };
})();
