'use strict';
/**
 * Where the reader is, kept in the address after `#`, so that a link leads back: the view, the filters, the rollout.
 * `#rollouts?step=3&verdict=wrong&at=0:3:2:prompt-id` is run 0, step 3, rollout 2 of that prompt.
 */
(() => {
  const VIEWS = ['overview', 'rollouts', 'metrics', 'configuration'];
  const KEYS = ['run', 'step', 'verdict', 'kept', 'trained', 'reason', 'end', 'rmin', 'rmax', 'lmin', 'lmax', 'q', 'sort',
    're', 'at', 'read', 'mode', 'other', 'shade', 'figures', 'metric', 'hide', 'x', 'smooth', 'log', 'by'];
  const listeners = [];
  let later = null;
  let now = read();

  function read() {
    const [view, query = ''] = location.hash.slice(1).split(/\?(.*)/s);
    const given = new URLSearchParams(query);
    const place = { view: VIEWS.includes(view) ? view : 'overview' };
    for (const key of KEYS) place[key] = given.get(key) ?? '';
    return place;
  }

  function address(place) {
    const query = new URLSearchParams();
    for (const key of KEYS) if (place[key]) query.set(key, place[key]);
    const text = query.toString();
    return `#${place.view}${text ? `?${text}` : ''}`;
  }

  /** Change some of it. `push`: a new entry, to which the browser's Back returns. */
  function go(change, { push = false } = {}) {
    const before = now;
    now = { ...now, ...change };
    if (push) write('pushState');
    else later ??= setTimeout(() => write('replaceState'), 100); // browsers refuse more than a few hundred in a row
    notify(before);
  }

  function write(how) {
    clearTimeout(later);
    later = null;
    const hash = address(now);
    if (hash !== location.hash) history[how](null, '', hash);
  }

  /** The address changed by other hands: a link, Back, or somebody who typed. */
  function follow() {
    if (address(now) === location.hash) return;
    clearTimeout(later);
    later = null;
    const before = now;
    now = read();
    notify(before);
  }

  const notify = (before) => listeners.forEach((listener) => listener(now, before));

  /** {run, step, index, prompt} of `at`, or null. */
  function at(text = now.at) {
    const match = /^(\d+):(\d+):(\d+):(.*)$/s.exec(text);
    return match && { run: Number(match[1]), step: Number(match[2]), index: Number(match[3]), prompt: match[4] };
  }

  const atOf = (item) => `${item.run}:${item.step}:${item.rollout.index}:${item.group.prompt_id}`;

  window.addEventListener('popstate', follow);
  window.addEventListener('hashchange', follow);

  winnow.place = { VIEWS, get: () => now, go, at, atOf, address, listen: (listener) => listeners.push(listener), start: () => notify({}) };
})();

/** Dark or light, and light on paper: the system's choice, or the reader's, which is stored if the browser allows it. */
(() => {
  const { h } = winnow.dom;
  const listeners = [];
  const system = matchMedia('(prefers-color-scheme: dark)');
  const stored = () => { try { return localStorage.getItem('winnow-theme'); } catch { return null; } };
  const dark = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : system.matches);

  function choose(theme) {
    if (theme === 'dark' || theme === 'light') document.documentElement.dataset.theme = theme;
    box.setAttribute('aria-pressed', String(dark()));
    listeners.forEach((listener) => listener());
  }

  const box = h('button', { type: 'button', class: 'quiet', id: 'theme', 'aria-label': 'dark colours', title: 'dark or light', 'aria-pressed': 'false', on: { click: () => {
    const theme = dark() ? 'light' : 'dark';
    try { localStorage.setItem('winnow-theme', theme); } catch { /* a page without a store forgets it */ }
    choose(theme);
  } } }, h('span', { 'aria-hidden': 'true' }, '◐'));

  /** The colour that the style sheet has under a name, for what is drawn on a canvas. */
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  system.addEventListener('change', () => choose(null));
  matchMedia('print').addEventListener('change', () => listeners.forEach((listener) => listener()));
  winnow.theme = { button: box, colour, listen: (listener) => listeners.push(listener), start: () => choose(stored()) };
})();
