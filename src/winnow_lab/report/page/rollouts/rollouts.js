'use strict';
/** The view of rollouts: filters and the list at one side, what is read at the other; on a phone one after the other. */
(() => {
  const { h, show } = winnow.dom;
  const { count, whole, compact } = winnow.numbers;
  const { model, place, filters, histogram, list, reader, foreign } = winnow;

  const form = filters.form();
  const bars = h('div', { class: 'histogram' });
  const counter = h('p', { class: 'counter', role: 'status' });
  const trouble = h('p', { class: 'trouble', role: 'alert', hidden: true });
  const reading = h('article', { class: 'reader', 'aria-label': 'rollout', tabindex: -1, id: 'reader' });
  const shown = list.make((item, open) => choose(item, open));
  const heads = h('div', { class: 'heads-of-list', 'aria-hidden': 'true' }, ['', 'reward', 'advant.', 'tokens', '', 'text'].map((head) => h('span', {}, head)));
  const element = h('div', { class: 'rollouts' },
    h('div', { class: 'side' }, form.element, h('details', { class: 'more rewards', open: true }, h('summary', {}, 'rewards'), bars),
      h('div', { class: 'status' }, counter, form.clear), trouble, heads, shown.element, h('p', { class: 'note part' }, included())), reading);
  let current = null;
  let drawn = '';

  /** What of the log is in this file. */
  function included() {
    const notes = model.runs.flatMap((run) => run.rollouts?.notes ?? []).map((text) => foreign.line(text, 400));
    if (model.served) return ['Steps are read from the log when they are chosen; filters and search see those that were.', ...notes].join(' ');
    return model.runs.map((run) => {
      const { why, notes } = run.rollouts ?? {};
      const reasons = [...[why, ...(notes ?? [])].filter(Boolean).map((text) => foreign.line(text, 400))].filter(Boolean).join(' ');
      return reasons && `${model.several ? `${foreign.line(run.name, 60)}: ` : ''}${reasons}`;
    }).filter(Boolean).join(' ');
  }

  function choose(item, open = false) {
    if (!item) return;
    const opens = open && narrow();
    const begins = opens && !element.classList.contains('reading');
    place.go({ at: place.atOf(item), ...(opens ? { read: '1' } : {}) }, { push: begins });
    if (opens) window.scrollTo(0, 0);
    if (begins) reading.focus({ preventScroll: true });
  }

  const narrow = () => matchMedia('(max-width: 860px)').matches;

  /** To another rollout, which is opened; where the list has the keys (`open` is false) it only moves in it. */
  const turn = (by, byGroup, open = true) => choose(shown.step(by, byGroup), open);

  function back() {
    linked = false;
    place.go({ read: '' });
    shown.mark(current);
    shown.element.focus();
  }

  /** The item that `at` names; else the first of the list. */
  function find(at, items) {
    const wanted = place.at(at.at);
    if (!wanted) return items[0] ?? null;
    return model.items.find((item) => item.run === wanted.run && item.step === wanted.step && item.rollout.index === wanted.index && item.group.prompt_id === wanted.prompt) ?? null;
  }

  function missing(at) {
    const wanted = place.at(at.at);
    if (!wanted) return model.served ? 'Choose a step to read its rollouts.' : model.items.length ? 'No rollout passes the filters.' : 'This file holds no rollouts.';
    return `Rollout ${wanted.index} of ${foreign.line(wanted.prompt, 80)} in step ${wanted.step} is not ${model.served ? 'loaded' : 'in this file'}.`;
  }

  const FILTERS = [...Object.keys(filters.CLEAR), 're', 'sort'];
  let listed = null;
  let linked = place.get().view === 'rollouts' && Boolean(place.get().at); // a link to a rollout opens it, on a phone too, until the reader goes back to the list

  function update(at, before, again) {
    if (again || !listed || FILTERS.some((key) => at[key] !== before[key])) {
      listed = filters.chosen(at);
      form.update(at);
      histogram.draw(bars, at);
      const n = filters.active(at).length;
      counter.textContent = `${n ? `${whole(listed.length)} of ` : ''}${count(model.items.length, 'rollout')}${model.served ? ' loaded' : ''}`;
      form.clear.hidden = !n;
      current = find(at, listed);
      shown.set(listed, current, at);
    } else {
      current = find(at, listed);
      shown.mark(current);
    }
    element.classList.toggle('reading', at.read === '1' || linked);
    read(at);
    fetchWhatIsMissing(at);
  }

  function read(at) {
    const key = JSON.stringify([current && place.atOf(current), at.mode, at.other, at.shade, at.figures, at.q, at.re, model.items.length]);
    if (key === drawn && reading.firstChild) return;
    const same = drawn && current && JSON.parse(drawn)[0] === place.atOf(current);
    drawn = key;
    const focus = reading.contains(document.activeElement) ? document.activeElement : null;
    const again = focus && [focus.id && `#${focus.id}`, focus.dataset.mode && `[data-mode=${focus.dataset.mode}]`, focus.title && `[title="${CSS.escape(focus.title)}"]`].find(Boolean);
    if (current) reader.draw(reading, current, at, turn, back);
    else show(reading, h('p', { class: 'nothing' }, missing(at)));
    if (again) reading.querySelector(again)?.focus();
    if (!same) reading.scrollTop = 0;
  }

  /** Under --serve: the steps that the filters or a link name. */
  async function fetchWhatIsMissing(at) {
    if (!model.served) return;
    const wanted = place.at(at.at);
    const runs = at.run ? [Number(at.run)] : model.runs.map((_, i) => i);
    const steps = at.step ? [Number(at.step)] : [];
    const wantedSteps = [...runs.flatMap((run) => steps.map((step) => [run, step])), ...(wanted ? [[wanted.run, wanted.step]] : [])]
      .filter(([run, step]) => !model.loaded.has(`${run}/${step}`) && model.has(run, step));
    if (!wantedSteps.length) return;
    counter.textContent = `reading step ${wantedSteps[0][1]} …`;
    trouble.hidden = true;
    try {
      await Promise.all(wantedSteps.map(([run, step]) => model.load(run, step)));
      update(place.get(), place.get(), true);
    } catch (error) {
      trouble.textContent = `The step could not be read: ${foreign.line(error.message, 600)}`;
      trouble.hidden = false;
      counter.textContent = `${count(model.items.length, 'rollout')} loaded`;
    }
  }

  winnow.rollouts = { element, update, turn, back, open: () => choose(current, true), search: form.search, list: shown, current: () => current };
})();
