'use strict';
/** One rollout as it is read: where it is, what became of it, its prompt, its tokens; or its group side by side. */
(() => {
  const { h, show, button, option, whenSeen } = winnow.dom;
  const { short, signed, whole, count } = winnow.numbers;
  const { foreign, model, place, tokens, facts, filters } = winnow;
  const LONG = 2000; // characters of a prompt
  const MODES = { '': 'one rollout', group: 'the whole group', pair: 'beside another' };

  const runName = (run) => foreign.line(model.runs[run].name, 60);

  function where(item) {
    const { run, step, group, rollout } = item;
    return h('p', { class: 'where' }, model.several ? `${runName(run)} › ` : '', `step ${step} › `, h('bdi', {}, foreign.line(group.prompt_id, 80)), ` › rollout ${rollout.index}`, h('span', { class: 'of' }, ` · ${whole(group.count)} in the group`));
  }

  /** A prompt in which the text that all prompts share is dimmed; a long prompt is folded instead. */
  function framed(item, pattern) {
    const { prompt: text } = item.group;
    if (text.length > LONG) return foreign.block(text, pattern, { fold: LONG, label: 'prompt' });
    const [before, after] = model.frame(item.run);
    const [from, to] = before + after < text.length ? [before, text.length - after] : [0, text.length];
    const marks = foreign.places(text, pattern);
    const grey = (start, end) => (start < end ? h('span', { class: 'frame' }, foreign.marked(text, marks, start, end)) : null);
    return h('div', { class: 'foreign', role: 'group', 'aria-label': 'prompt' }, [grey(0, from), foreign.marked(text, marks, from, to), grey(to, text.length)].flat().filter(Boolean));
  }

  function prompt(item, pattern) {
    const { group } = item;
    const title = group.task ? `prompt (${foreign.line(group.task, 60)})` : 'prompt';
    return h('section', { class: 'prompt', 'aria-label': 'prompt' }, h('h4', {}, title), framed(item, pattern));
  }

  function switches(item, at) {
    const can = tokens.kinds(item.group);
    const shadeNow = shadeOf(item, at);
    const modes = h('div', { class: 'segments', role: 'group', 'aria-label': 'what to show' }, Object.entries(MODES)
      .filter(([mode]) => mode !== 'pair' || model.elsewhere(item).length || item.group.rollouts.length > 1)
      .map(([mode, text]) => button(text, () => place.go({ mode }), { 'aria-pressed': String(at.mode === mode), 'data-mode': mode || 'one' })));
    const shade = h('label', { class: 'inline' }, 'shade by ', h('select', { id: 'shade', on: { change: (e) => place.go({ shade: e.target.value }) } },
      can.map((kind) => option(kind, tokens.KINDS[kind].label, shadeNow)), option('none', 'nothing', shadeNow)));
    const figures = h('label', { class: 'inline' }, h('input', { type: 'checkbox', id: 'figures', checked: at.figures === '1', on: { change: (e) => place.go({ figures: e.target.checked ? '1' : '' }) } }), ' numbers under tokens');
    return h('div', { class: 'switches' }, modes, can.length ? [shade, figures] : h('p', { class: 'note' }, 'Texts only: the texts of this run could not be divided into tokens.'),
      can.length && shadeNow !== 'none' ? h('div', { class: 'legend', 'aria-label': `shades of the ${tokens.KINDS[shadeNow].label}`, role: 'group' }, tokens.legend(shadeNow, item.group)) : null);
  }

  function shadeOf(item, at) {
    const can = tokens.kinds(item.group);
    return at.shade === 'none' || can.includes(at.shade) ? at.shade : can[0] ?? 'none';
  }

  const options = (item, at, onToken, label) => ({ kind: shadeOf(item, at), figures: at.figures === '1', pattern: filters.sought(at), onToken, label });

  /** A rollout with its numbers and text. `late`: the text is made when the column is first seen, as a group may have hundreds. */
  function column(item, at, onToken, current, late) {
    const r = item.rollout;
    const holder = h('div', { class: 'text' });
    const fill = () => show(holder, tokens.block(item, { ...options(item, at, onToken, `text of rollout ${r.index}`), fold: 500 }));
    if (late) whenSeen(holder, fill); else fill();
    return h('article', { class: `column${current ? ' current' : ''}`, 'aria-label': `rollout ${r.index}, ${r.kind}` },
      h('header', {}, h('h4', {}, `rollout ${r.index}`), facts.badge(r), facts.fate(r), facts.cut(r),
        h('p', { class: 'note' }, `reward ${short(r.reward)} · advantage ${signed(model.advantageOf(r))} · ${count(r.length, 'token')}`)), holder);
  }

  /** All rollouts of the group as columns, in as many rows as the window needs. */
  const wholeGroup = (item, at, onToken) => h('div', { class: 'columns', role: 'group', 'aria-label': `${item.group.rollouts.length} rollouts of the group, side by side` },
    item.group.rollouts.map((rollout) => column({ ...item, rollout }, at, onToken, rollout === item.rollout, true)));

  /** This rollout beside another of its prompt: of this group, of another step, or of another run. */
  function pair(item, at, onToken) {
    const others = [{ run: item.run, step: item.step, group: item.group }, ...model.elsewhere(item)];
    const [run, step, index] = at.other.split(':').map(Number);
    const there = others.find((o) => o.run === run && o.step === step) ?? others[1] ?? others[0];
    const rollout = there.group.rollouts.find((r) => r.index === index && r !== item.rollout) ?? there.group.rollouts.find((r) => r.index === item.rollout.index && r !== item.rollout) ?? there.group.rollouts.find((r) => r !== item.rollout);
    const name = (o) => `${model.several ? `${runName(o.run)} · ` : ''}${o.group === item.group ? 'this group' : `step ${o.step}`} · mean reward ${short(o.group.mean_reward)}`;
    const choose = (o, r) => place.go({ other: `${o.run}:${o.step}:${r ? r.index : ''}` });
    const pick = h('label', { class: 'field' }, h('span', {}, 'beside'), h('select', { id: 'other', on: { change: (e) => choose(others[Number(e.target.value)]) } },
      others.map((o, i) => option(String(i), name(o), String(others.indexOf(there))))));
    return h('div', { class: 'pair' },
      h('div', { class: 'half' }, h('h4', {}, name({ ...item, group: item.group }).replace('this group', `step ${item.step}`)), facts.strip(item.group, item.rollout, (r) => place.go({ at: place.atOf({ ...item, rollout: r }) }), 'rollouts of this group'), column(item, at, onToken, true)),
      h('div', { class: 'half' }, pick, rollout ? [facts.strip(there.group, rollout, (r) => choose(there, r), 'rollouts beside it'), column({ ...there, rollout }, at, onToken, false)] : h('p', { class: 'note' }, 'The group has no other rollout.')));
  }

  function one(item, at, onToken) {
    return h('section', { class: 'completion', 'aria-label': 'completion' }, h('h4', {}, 'completion'), tokens.block(item, options(item, at, onToken, 'completion')));
  }

  /** Draw an item; `turn(by, byGroup)` goes to another. */
  function draw(element, item, at, turn, back) {
    const { element: line, onToken } = tokens.readout();
    const r = item.rollout;
    const view = at.mode === 'group' ? wholeGroup : at.mode === 'pair' ? pair : one;
    const move = (label, by, byGroup, title) => button(label, () => turn(by, byGroup), { title, 'aria-label': title });
    show(element,
      h('div', { class: 'top' }, button('‹ list', back, { class: 'back' }), where(item),
        h('div', { class: 'moves', role: 'group', 'aria-label': 'go to another rollout' }, move('«', -1, true, 'previous group (p)'), move('‹', -1, false, 'previous rollout (k)'), move('›', 1, false, 'next rollout (j)'), move('»', 1, true, 'next group (n)'))),
      h('h3', { class: 'unseen' }, `rollout ${r.index}`),
      h('p', { class: 'badges' }, facts.badge(r), facts.fate(r), facts.cut(r)),
      facts.facts(item), facts.strip(item.group, r, (other) => place.go({ at: place.atOf({ ...item, rollout: other }) }), 'rollouts of this group'),
      prompt(item, filters.sought(at)), switches(item, at),
      tokens.kinds(item.group).length ? line : null, view(item, at, onToken));
  }

  winnow.reader = { draw };
})();
