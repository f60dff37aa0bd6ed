'use strict';
/** Every metric of the log with its meaning; choosing one draws it, for all runs. The view opens with the mean reward. */
(() => {
  const { h, svg, show } = winnow.dom;
  const { short, count } = winnow.numbers;
  const { model, place, chart, curves, axes, foreign } = winnow;
  const { column } = axes;

  const FIRST = 'reward/mean'; // what is drawn until somebody chooses
  const NOTHING = '-'; // no metric is called that: every choice was taken back

  const names = () => {
    const all = new Set(model.runs.flatMap((run) => Object.keys(run.metrics?.columns ?? {})));
    return [...(all.delete(FIRST) ? [FIRST] : []), ...all];
  };

  function spark(all) {
    const [low, high] = chart.extent(all.map((c) => ({ ...c, axis: 1 })), 1);
    const left = Math.min(...all.flatMap((c) => c.x.slice(0, 1)));
    const right = Math.max(...all.flatMap((c) => c.x.slice(-1)));
    const at = (x, y) => `${(2 + (96 * (x - left)) / (right - left || 1)).toFixed(1)},${(22 - (20 * (y - low)) / (high - low || 1)).toFixed(1)}`;
    return svg('svg', { viewBox: '0 0 100 24', class: 'spark', 'aria-hidden': 'true' }, all.map((c, run) => {
      const own = svg('polyline', { points: c.x.map((x, i) => at(x, c.y[i])).join(' ') });
      own.style.stroke = `var(--${curves.hue(run)})`;
      return own;
    }));
  }

  const meaning = (name) => foreign.line(model.runs.filter((run) => Object.hasOwn(run.meanings ?? {}, name)).map((run) => run.meanings[name]).find(Boolean) ?? '', 1000);

  function spec(name, off) {
    const lines = model.runs.map((run, i) => ({ ...column(run, name), label: model.several ? curves.name(i) : name, colour: curves.hue(i), dash: 'solid', axis: 1, run: i })).filter((line) => !off.has(line.run) && line.x.length);
    return { title: foreign.line(name, 120), note: meaning(name), x_label: axes.STEPS, link: curves.toRollouts, y_label: '', percent: false, lines };
  }

  function row(name) {
    const all = model.runs.map((run) => column(run, name));
    const cell = (f) => h('td', {}, all.map((c, i) => h('div', {}, model.several ? curves.dot(i) : null, c.y.length ? f(c.y) : '–', model.several ? h('span', { class: 'unseen' }, ` in ${curves.name(i)}`) : null)));
    const box = h('input', { type: 'checkbox', 'data-metric': name, 'aria-label': `draw ${foreign.line(name, 120)}`, on: { change: () => {
      const on = chosen(place.get());
      if (!on.delete(name)) on.add(name);
      place.go({ metric: [...on].join(',') || NOTHING });
    } } });
    return h('tr', { 'data-name': name }, h('td', {}, box), h('th', { scope: 'row' }, h('code', {}, foreign.line(name, 120)), h('span', { class: 'note' }, meaning(name))),
      h('td', {}, spark(all)), cell((y) => short(y[0])), cell((y) => short(y.at(-1))), cell((y) => short(y.reduce((a, b) => Math.min(a, b)))), cell((y) => short(y.reduce((a, b) => Math.max(a, b)))));
  }

  const chosen = (at) => new Set((at.metric || FIRST).split(',').filter((name) => names().includes(name)));

  function make() {
    const grid = h('div', { class: 'charts' });
    const body = h('tbody');
    const counter = h('p', { class: 'note', role: 'status' });
    const find = h('input', { type: 'search', placeholder: 'find a metric', 'aria-label': 'find a metric by name or meaning', spellcheck: 'false', on: { input: () => sift() } });
    const regular = winnow.filters.expressions(find, () => sift());
    const look = axes.controls();
    const element = h('section', { 'aria-labelledby': 'title-metrics', class: 'metrics' }, h('h2', { id: 'title-metrics' }, 'Metrics'), curves.toggles(), look.element, grid, h('div', { class: 'tools' }, find, regular.element, counter),
      h('div', { class: 'scroll', role: 'region', tabindex: 0, 'aria-label': 'metrics' }, h('table', {}, h('caption', { class: 'unseen' }, 'metrics of the log'),
        h('thead', {}, h('tr', {}, ['draw', 'metric', 'course', 'first', 'last', 'least', 'most'].map((head) => h('th', { scope: 'col' }, head)))), body)));
    let drawn = null;

    function sift() {
      const sought = winnow.filters.pattern(find.value, regular.box.checked);
      regular.mark(regular.box.checked);
      let seen = 0;
      for (const tr of body.children) {
        tr.hidden = sought !== null && tr.querySelector('th').textContent.search(sought) < 0;
        seen += tr.hidden ? 0 : 1;
      }
      counter.textContent = count(seen, 'metric');
    }

    function update(at) {
      if (!body.firstChild) { show(body, names().map(row)); sift(); }
      look.update(at);
      const now = [at.metric, at.hide, axes.key(at)].join(' ');
      if (now === drawn) return;
      drawn = now;
      const on = chosen(at);
      const off = curves.hidden(at);
      element.querySelectorAll('[data-run]').forEach((box) => box.setAttribute('aria-pressed', String(!off.has(Number(box.dataset.run)))));
      body.querySelectorAll('[data-metric]').forEach((box) => { box.checked = on.has(box.dataset.metric); });
      chart.clear(grid);
      show(grid, on.size ? [...on].map((name) => chart.make(axes.chosen(spec(name, off), at))) : h('p', { class: 'nothing' }, 'Choose metrics below to draw them here.'));
    }

    return { element, update };
  }

  winnow.metrics = { make };
})();

/** The resolved configurations, one column a run; keys in which runs differ are marked. */
(() => {
  const { h, show } = winnow.dom;
  const { model, curves, foreign } = winnow;

  const simple = (value) => value === null || typeof value !== 'object' || (Array.isArray(value) && value.every((x) => x === null || typeof x !== 'object'));

  /** "loss.clip": 0.2 of {loss: {clip: 0.2}}; members of lists of tables are numbered. */
  function flatten(value, path = '', values = new Map()) {
    if (simple(value)) values.set(path, value === null ? 'none' : JSON.stringify(value));
    else for (const [key, inner] of Object.entries(value)) flatten(inner, Array.isArray(value) ? `${path}[${key}]` : path ? `${path}.${key}` : key, values);
    return values;
  }

  /** What resumes changed, of every run that was resumed otherwise than it began. */
  function changes() {
    return model.runs.map((run, i) => (run.changes?.length ? h('article', { class: 'changes', 'aria-label': `changed at a resume of ${curves.name(i)}` },
      h('h3', {}, `${model.several ? `${curves.name(i)}: ` : ''}changed at a resume`),
      h('ul', {}, run.changes.map((change) => h('li', {}, `from step ${change.step} on: `, h('code', {}, foreign.line(change.key, 200)), ' was ', h('code', {}, foreign.line(change.was, 300)), ', is ', h('code', {}, foreign.line(change.now, 300)))))) : null)).filter(Boolean);
  }

  function make() {
    const flat = model.runs.map((run) => flatten(run.config ?? {}));
    const keys = [...new Set(flat.flatMap((one) => [...one.keys()]))];
    const differs = (key) => new Set(flat.map((one) => one.get(key))).size > 1;
    const tables = new Map();
    for (const key of keys) {
      const first = /[.[]/.test(key) ? key.split(/[.[]/)[0] : ''; // keys outside of tables are one group
      tables.set(first, [...(tables.get(first) ?? []), key]);
    }
    const body = h('div');
    const row = (key) => h('tr', { class: differs(key) ? 'differs' : null }, h('th', { scope: 'row' }, differs(key) ? h('span', { class: 'sign', title: 'the runs differ', role: 'img', 'aria-label': 'the runs differ' }, '≠ ') : null, h('code', {}, foreign.line(key, 200))),
      flat.map((one) => h('td', {}, one.has(key) ? h('code', {}, foreign.line(one.get(key), 1000)) : '–')));

    function draw(only) {
      const parts = [...tables].map(([name, own]) => [name, only ? own.filter(differs) : own]).filter(([, own]) => own.length).map(([name, own]) => {
        const n = own.filter(differs).length;
        return h('details', { class: 'table', open: n > 0 || (!model.several && tables.size < 3) }, h('summary', {}, name ? h('code', {}, foreign.line(name, 80)) : 'the run', h('span', { class: 'note' }, ` ${own.length} ${own.length === 1 ? 'key' : 'keys'}${n ? `, ${n} different` : ''}`)),
          h('div', { class: 'scroll', role: 'region', tabindex: 0, 'aria-label': `configuration of ${foreign.line(name || 'the run', 80)}` }, h('table', {}, h('caption', { class: 'unseen' }, `configuration: ${foreign.line(name || 'the run', 80)}`),
            h('thead', { class: model.several ? null : 'unseen' }, h('tr', {}, h('th', { scope: 'col' }, 'key'), model.runs.map((_, i) => h('th', { scope: 'col' }, model.several ? curves.name(i) : 'value')))), h('tbody', {}, own.map(row)))));
      });
      show(body, parts.length ? parts : h('p', { class: 'nothing' }, 'The runs do not differ.'));
    }

    draw(false);
    const only = model.several ? h('label', { class: 'inline' }, h('input', { type: 'checkbox', on: { change: (e) => draw(e.target.checked) } }), ' only what differs') : null;
    const all = winnow.dom.button('open all', () => body.querySelectorAll('details').forEach((d) => { d.open = true; }), { class: 'quiet' });
    return { element: h('section', { 'aria-labelledby': 'title-configuration', class: 'configuration' }, h('h2', { id: 'title-configuration' }, 'Configuration'), changes(), h('div', { class: 'tools' }, only, all), body), update: () => {} };
  }

  winnow.configuration = { make, flatten };
})();
