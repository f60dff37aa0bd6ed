'use strict';
/** The page's one name; every file puts its part here. */
const winnow = {};

/**
 * Elements are made here and nowhere else. A text is only ever a text node and an attribute one of a short list, so
 * nothing that a run holds can become markup, a style, a handler or an address.
 */
(() => {
  const ATTRIBUTES = new Set([
    'id', 'class', 'type', 'name', 'value', 'for', 'title', 'role', 'tabindex', 'placeholder', 'scope', 'min', 'max',
    'step', 'hidden', 'open', 'checked', 'selected', 'disabled', 'colspan', 'rowspan', 'inputmode', 'autocomplete',
    'spellcheck', 'dir', 'download',
    'viewBox', 'x', 'y', 'x1', 'x2', 'y1', 'y2', 'cx', 'cy', 'r', 'width', 'height', 'd', 'points', 'text-anchor',
    'preserveAspectRatio',
  ]);

  function fill(element, options, children) {
    for (const [name, value] of Object.entries(options ?? {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name === 'on') for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
      else if (name === 'href' && !String(value).startsWith('#')) throw new Error('links lead to places of this page only');
      else if (name !== 'href' && !ATTRIBUTES.has(name) && !/^(aria|data)-[a-z-]+$/.test(name)) throw new Error(`no attribute ${name}`);
      else element.setAttribute(name, value === true ? '' : String(value));
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  }

  /** An element of HTML: `h('p', {class: 'note'}, 'text', h('b', {}, 'more'))`. */
  const h = (tag, options, ...children) => fill(document.createElement(tag), options, children);

  /** An element of SVG. */
  const svg = (tag, options, ...children) =>
    fill(document.createElementNS('http://www.w3.org/2000/svg', tag), options, children);

  /** Replace what an element holds. */
  const show = (element, ...children) => {
    element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  };

  const button = (label, act, options) => h('button', { type: 'button', ...options, on: { click: act } }, label);

  const option = (value, label, chosen) => h('option', { value, selected: value === chosen }, label);

  /** A table: heads are texts, rows are lists of texts or elements; the first cell of a row is its header. */
  function table(caption, heads, rows, kind = '') {
    const cell = (value, i) => (i ? h('td', {}, value) : h('th', { scope: 'row' }, value));
    return h('div', { class: 'scroll', role: 'region', tabindex: 0, 'aria-label': caption },
      h('table', { class: kind }, h('caption', { class: 'unseen' }, caption),
        h('thead', {}, h('tr', {}, heads.map((head) => h('th', { scope: 'col' }, head)))),
        h('tbody', {}, rows.map((row) => h('tr', {}, row.map(cell))))));
  }

  const unseen = new Map(); // element -> what ends the wait for its first sight

  /** What is drawn as soon as it is first seen, or printed: charts below the fold cost nothing until then. */
  function whenSeen(element, act) {
    const watch = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) draw(); }, { rootMargin: '300px' });
    function end() {
      watch.disconnect();
      window.removeEventListener('beforeprint', draw);
      unseen.delete(element);
    }
    function draw() {
      end();
      if (element.isConnected) act();
    }
    watch.observe(element);
    window.addEventListener('beforeprint', draw);
    unseen.set(element, end);
  }

  /** Draw no more what has not been seen within an element, which is about to be replaced. */
  const forget = (parent) => unseen.forEach((end, element) => { if (parent.contains(element)) end(); });

  winnow.dom = { h, svg, show, button, option, table, whenSeen, forget };
})();

/** Numbers as a person reads them. A minus is a minus sign, and what is missing is a dash. */
(() => {
  const NONE = '–';
  const known = (x) => typeof x === 'number' && Number.isFinite(x);
  const minus = (text) => text.replace(/^-/, '−');

  /** "950", "3.4k", "12M". */
  function compact(x) {
    if (!known(x)) return NONE;
    for (const [size, letter] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
      if (Math.abs(x) < size) continue;
      const scaled = x / size;
      return minus(scaled.toFixed(Math.abs(scaled) >= 9.95 ? 0 : 1)) + letter;
    }
    return short(x);
  }

  /** Three significant digits: "0.0123", "41.3", "1.2e−7". */
  function short(x) {
    if (!known(x)) return NONE;
    const size = Math.abs(x);
    if (size !== 0 && (size < 1e-4 || size >= 1e6)) return minus(x.toExponential(1)).replace('e-', 'e−').replace('e+', 'e');
    if (Number.isInteger(x)) return minus(String(x));
    return minus(String(Number(x.toPrecision(size >= 1000 ? 4 : 3))));
  }

  const signed = (x) => (known(x) && x > 0 ? `+${short(x)}` : short(x));
  const percent = (x) => (known(x) ? `${minus((100 * x).toFixed(Math.abs(x) < 0.0995 && x !== 0 ? 1 : 0))}%` : NONE);
  const whole = (x) => (known(x) ? x.toLocaleString('en-US') : NONE);
  const count = (n, one, many = `${one}s`) => `${whole(n)} ${n === 1 ? one : many}`;

  winnow.numbers = { known, compact, short, signed, percent, whole, count, NONE };
})();
