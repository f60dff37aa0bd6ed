'use strict';
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
