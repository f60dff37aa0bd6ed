'use strict';
/** The keyboard: one letter a deed, never while somebody types; and the help that lists them. */
(() => {
  const { h, button } = winnow.dom;
  const { place, rollouts } = winnow;
  const SHORTCUTS = [
    ['j  or  →', 'next rollout'], ['k  or  ←', 'previous rollout'], ['n', 'next group'], ['p', 'previous group'],
    ['g', 'the whole group, or one rollout'], ['s', 'shade by the next number'], ['/', 'search'], ['Esc', 'leave the search; back to the list'],
    ['1 2 3 4', 'overview, rollouts, metrics, configuration'], ['← →  in a chart or a text', 'next point, next token'], ['?', 'this help'],
  ];

  const help = h('dialog', { class: 'help', 'aria-labelledby': 'help-title' }, h('h2', { id: 'help-title' }, 'Keys'),
    h('dl', {}, SHORTCUTS.map(([key, what]) => h('div', {}, h('dt', {}, h('kbd', {}, key)), h('dd', {}, what)))),
    button('close', () => help.close(), {}));

  function shadeNext() {
    const select = document.getElementById('shade');
    if (!select) return;
    const i = (select.selectedIndex + 1) % select.options.length;
    place.go({ shade: select.options[i].value });
  }

  function search() {
    if (place.get().view !== 'rollouts') place.go({ view: 'rollouts' }, { push: true });
    place.go({ read: '' });
    rollouts.search.focus();
    rollouts.search.select();
  }

  const READING = {
    j: () => rollouts.turn(1, false), k: () => rollouts.turn(-1, false), ArrowRight: () => rollouts.turn(1, false), ArrowLeft: () => rollouts.turn(-1, false),
    n: () => rollouts.turn(1, true), p: () => rollouts.turn(-1, true), g: () => place.go({ mode: place.get().mode === 'group' ? '' : 'group' }), s: shadeNext, Escape: rollouts.back,
  };
  const ANYWHERE = { '/': search, '?': () => help.showModal() };
  const IN_LIST = { ArrowDown: () => rollouts.turn(1, false, false), ArrowUp: () => rollouts.turn(-1, false, false), Enter: () => rollouts.open() };

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const { target } = event;
    if (target.matches('input, select, textarea')) {
      if (event.key === 'Escape' && target.matches('input')) target.blur();
      return;
    }
    const views = { 1: 0, 2: 1, 3: 2, 4: 3 };
    let act = ANYWHERE[event.key];
    if (event.key in views) act = () => place.go({ view: place.VIEWS[views[event.key]] }, { push: true });
    if (place.get().view === 'rollouts') {
      if (target.id === 'list' && IN_LIST[event.key]) act = IN_LIST[event.key];
      else if (!(event.key.startsWith('Arrow') && target.closest('[role=region], .scroll'))) act ??= READING[event.key];
    }
    if (!act) return;
    event.preventDefault();
    act();
  }

  document.addEventListener('keydown', pressed);
  winnow.keys = { help };
})();
