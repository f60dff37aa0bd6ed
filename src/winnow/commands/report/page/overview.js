'use strict';
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
    const element = h('div', { class: 'overview' }, h('div', { class: 'heads' }, model.runs.map(headline)), alarms(), evaluations.section(), drawn.element, ledger.section(), allocation.section());
    return { element, update: (at) => drawn.update(at) };
  }

  winnow.overview = { make };
})();
