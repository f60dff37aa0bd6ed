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

/** Puts the page together: the bar at the top, and the view that the address names. A view is made when first seen. */
(() => {
  const { h, show, button } = winnow.dom;
  const { model, place, theme, keys, foreign } = winnow;

  const makers = { overview: winnow.overview.make, metrics: winnow.metrics.make, configuration: winnow.configuration.make, rollouts: () => winnow.rollouts };
  const views = {};
  const main = document.getElementById('main');
  const links = place.VIEWS.map((view) => h('a', { href: `#${view}`, 'data-view': view, on: { click: (event) => { event.preventDefault(); place.go({ view }, { push: true }); window.scrollTo(0, 0); } } }, view));
  const names = model.runs.map((run) => foreign.line(run.name, 60)).join(' · ');

  show(document.getElementById('bar'), h('h1', {}, h('span', { class: 'mark' }, 'winnow'), ' ', h('span', { class: 'names', title: names }, names)),
    h('nav', { 'aria-label': 'views' }, links), h('div', { class: 'bar-tools' }, theme.button, button('?', () => keys.help.showModal(), { class: 'quiet', 'aria-label': 'keys', title: 'keys (?)' })));
  show(document.getElementById('foot'), `winnow ${foreign.line(String(model.data.winnow ?? ''), 40)}${model.data.made ? ` · ${foreign.line(String(model.data.made), 40)}` : ''} · charts: uPlot (MIT)`);
  document.body.append(keys.help);

  const status = h('span', { role: 'status' });
  document.getElementById('foot').append(' ', status);

  /** Make the views again from newer data; the rollouts list what it has by itself. */
  function redraw() {
    const from = window.scrollY;
    for (const view of place.VIEWS.filter((name) => name !== 'rollouts' && views[name])) {
      winnow.chart.clear(views[view].element);
      delete views[view];
    }
    update(place.get(), {}, true);
    window.scrollTo(0, from);
  }

  function update(at, before, again) {
    const made = at.view in views;
    views[at.view] ??= makers[at.view]();
    if (at.view !== before.view) {
      show(main, views[at.view].element);
      document.body.dataset.view = at.view;
      links.forEach((link) => { if (link.dataset.view === at.view) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current'); });
    }
    views[at.view].update(at, made ? before : {}, again);
  }

  document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); main.focus(); }); // '#main' is no place
  theme.start();
  place.listen(update);
  place.start();
  winnow.main = { redraw, say: (text) => { status.textContent = text; } };
})();
