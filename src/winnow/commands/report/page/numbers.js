'use strict';
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
