'use strict';
/**
 * Texts of a model, a data set or a verifier. Characters that would reorder, hide or end something are shown as what
 * they are: the same ones that `winnow show` escapes (winnow/view/text.py). Long texts are folded, so that a text of
 * a megabyte costs no more than a page of it until the reader requests the rest.
 */
(() => {
  const { h, button } = winnow.dom;
  const UNSAFE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u;
  const FOLD = 6000; // characters shown at first
  const PIECE = 50000; // characters added at a time

  /** A character as Python would write it in a string: `\x1b`, `\u202e`. */
  function escaped(character) {
    if (character === '\r') return '\\r';
    const code = character.codePointAt(0).toString(16);
    return code.length < 3 ? `\\x${code.padStart(2, '0')}` : code.length < 5 ? `\\u${code.padStart(4, '0')}` : `\\U${code.padStart(8, '0')}`;
  }

  const sign = (character) =>
    h('span', { class: 'escape', title: `character U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}` },
      escaped(character));

  /** Nodes of one text, line breaks and tabs as themselves. */
  function nodes(text) {
    const made = [];
    let plain = '';
    if (!UNSAFE.test(text)) return [text];
    for (const character of text) {
      if (character === '\n' || character === '\t' || !UNSAFE.test(character)) { plain += character; continue; }
      if (plain) made.push(plain);
      plain = '';
      made.push(sign(character));
    }
    if (plain) made.push(plain);
    return made;
  }

  /** One line of a text for a list, a title or an accessible name: at most so many characters, no line break. */
  function line(text, limit = 200) {
    const start = text.length > limit ? `${text.slice(0, limit).replace(/[\ud800-\udbff]$/, '')}…` : text;
    return Array.from(start, (c) => (c === '\n' ? '⏎' : UNSAFE.test(c) ? escaped(c) : c)).join('');
  }

  /** The matches of a search: [from, to) pairs, at most `most`. */
  function places(text, pattern, most = 2000) {
    const matches = [];
    if (!pattern) return matches;
    for (const match of text.matchAll(pattern)) {
      if (!match[0]) continue; // a regular expression may match nothing
      matches.push([match.index, match.index + match[0].length]);
      if (matches.length >= most) break;
    }
    return matches;
  }

  /** Nodes of text[from:to], with what was searched for in <mark>. */
  function marked(text, marks, from = 0, to = text.length) {
    const made = [];
    let at = from;
    for (const [start, end] of marks) {
      if (end <= from) continue;
      if (start >= to) break;
      if (start > at) made.push(...nodes(text.slice(at, start)));
      made.push(h('mark', {}, nodes(text.slice(Math.max(start, from), Math.min(end, to)))));
      at = Math.min(end, to);
    }
    if (at < to) made.push(...nodes(text.slice(at, to)));
    return made;
  }

  /** A text in a block of its own, folded after `fold` characters. */
  function block(text, pattern, { fold = FOLD, label } = {}) {
    const body = h('div', { class: 'foreign', dir: 'auto', role: label ? 'group' : null, 'aria-label': label });
    const marks = places(text, pattern);
    let shown = 0;
    const add = (size) => {
      const end = Math.min(shown + size, text.length);
      body.append(...marked(text, marks, shown, end));
      shown = end;
    };
    add(text.length > fold * 1.2 ? fold : text.length);
    if (shown === text.length) return body;
    return h('div', {}, body, unfold(`show all (${text.length.toLocaleString('en-US')} characters)`, () => { add(PIECE); return shown < text.length; }));
  }

  /** A button that has more added, a piece at a time between which the page answers, until there is no more. */
  function unfold(label, more) {
    const all = button(label, () => {
      all.remove();
      const go = () => { if (more()) setTimeout(go, 16); };
      go();
    }, { class: 'unfold' });
    return all;
  }

  winnow.foreign = { nodes, line, places, marked, block, unfold, FOLD };
})();
