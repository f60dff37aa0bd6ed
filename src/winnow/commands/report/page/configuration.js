'use strict';
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
