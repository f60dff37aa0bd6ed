'use strict';
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
})();
