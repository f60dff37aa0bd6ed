'use strict';
/** What is known of one rollout beside its text: verdict, reward and its parts, advantage, whether it was trained on. */
(() => {
  const { h, button } = winnow.dom;
  const { short, signed, whole, known } = winnow.numbers;
  const { filters, foreign, model } = winnow;

  const badge = (r) => h('span', { class: `badge ${r.kind}` }, h('span', { 'aria-hidden': 'true' }, `${filters.SIGNS[r.kind] ?? ''} `), r.kind);

  /** What became of it: "trained", "kept, not trained", "not kept"; the selectors keep, and of what they keep some is trained. */
  const became = (r) => (r.trained ? 'trained' : r.kept ? 'kept, not trained' : 'not kept');
  const SIGNS = { trained: '●', 'kept, not trained': '◐', 'not kept': '○' };
  const sign = (r) => SIGNS[became(r)];

  /** Whether the selectors kept it; whether it reached the update, or why not. */
  const fate = (r) => [
    h('span', { class: `badge ${r.kept ? 'kept' : 'dropped'}` }, r.kept ? 'kept' : 'not kept'),
    h('span', { class: `badge ${r.trained ? 'trained' : 'dropped'}` }, h('span', { 'aria-hidden': 'true' }, `${sign(r)} `), r.trained ? 'trained' : `not trained: ${foreign.line(r.reason || 'unknown', 80)}`),
  ];

  const cut = (r) => (r.finish === 'length' ? h('span', { class: 'badge cut' }, h('span', { 'aria-hidden': 'true' }, '✂ '), 'cut off') : null);

  const fact = (name, value) => (value === null ? null : h('div', { class: 'fact' }, h('dt', {}, name), h('dd', {}, value)));

  /** The reward's parts, "answer 1 + format 0.5", where there is more than one. */
  function parts(r) {
    const list = Object.entries(r.parts ?? {});
    return list.length > 1 || (list.length === 1 && list[0][1] !== r.reward) ? list.map(([name, x]) => `${foreign.line(name, 40)} ${short(x)}`).join(', ') : null;
  }

  function facts(item) {
    const r = item.rollout;
    const given = (text, limit) => (text === null || text === undefined || text === '' ? null : h('code', {}, foreign.line(model.asText(text), limit)));
    return h('dl', { class: 'facts' },
      fact('reward', short(r.reward)), fact('parts', parts(r)), fact(r.advantages ? 'advantage (mean over tokens)' : 'advantage', signed(model.advantageOf(r))),
      fact('weight in the loss', known(r.weight) ? short(r.weight) : null), fact('tokens', whole(r.length)),
      fact('answer found', given(r.extracted, 200)), fact('expected', given(item.group.answer, 200)),
      fact('verifier', r.cause ? `failed: ${foreign.line(r.cause, 40)}` : known(r.seconds) && r.seconds >= 0.1 ? `${short(r.seconds)} s` : null),
      fact('detail', given(r.detail, 400)));
  }

  /** All rollouts of a group as small buttons. */
  function strip(group, current, choose, label) {
    return h('div', { class: 'strip', role: 'group', 'aria-label': label }, group.rollouts.map((r) =>
      button([h('span', { 'aria-hidden': 'true' }, filters.SIGNS[r.kind] ?? '·'), h('span', { 'aria-hidden': 'true' }, known(r.reward) ? short(r.reward) : '–')], () => choose(r), {
        class: `chip ${r.kind}${r.kept ? '' : ' dropped'}`, 'aria-current': r === current ? 'true' : null, title: `rollout ${r.index}: ${r.kind}, ${r.trained ? 'trained' : `${r.kept ? 'kept, ' : ''}${r.reason}`}`.slice(0, 120),
        'aria-label': `rollout ${r.index}: ${r.kind}, reward ${short(r.reward)}, ${became(r)}`,
      })));
  }

  winnow.facts = { badge, became, sign, fate, cut, facts, strip };
})();
