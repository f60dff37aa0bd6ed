'use strict';
/** The rewards of what is listed, as bars: a bar is a button that keeps only its rewards. */
(() => {
  const { h, svg, show } = winnow.dom;
  const { short, whole, count } = winnow.numbers;
  const { place, model, filters } = winnow;
  const BINS = 12;

  /**
   * [{low, high, least, most, n}]: one bin per value where there are few, else equal widths, of which the last holds its
   * upper end. `least` and `most` of its values are the ends of a filter that leaves exactly these.
   */
  function bins(values, most = BINS) {
    const distinct = [...new Set(values)].sort((a, b) => a - b);
    if (!distinct.length) return [];
    if (distinct.length <= most) {
      const sizes = new Map();
      for (const x of values) sizes.set(x, (sizes.get(x) ?? 0) + 1);
      return distinct.map((x) => ({ low: x, high: x, least: x, most: x, n: sizes.get(x) }));
    }
    const low = distinct[0];
    const width = (distinct.at(-1) - low) / most;
    const made = Array.from({ length: most }, (_, i) => ({ low: low + i * width, high: low + (i + 1) * width, least: Infinity, most: -Infinity, n: 0 }));
    for (const x of values) {
      const bin = made[Math.min(most - 1, Math.floor((x - low) / width))];
      Object.assign(bin, { least: Math.min(bin.least, x), most: Math.max(bin.most, x), n: bin.n + 1 });
    }
    return made;
  }

  function draw(element, at) {
    const passing = model.items.filter(filters.test(at, 'reward'));
    const rewards = passing.map((item) => item.rollout.reward).filter((x) => x !== null);
    const made = bins(rewards);
    const top = Math.max(1, ...made.map((bin) => bin.n));
    const bars = made.map((bin) => {
      const [low, high] = [String(bin.least), String(bin.most)];
      const on = at.rmin === low && at.rmax === high;
      const name = bin.low === bin.high ? short(bin.low) : `${short(bin.low)} to ${short(bin.high)}`;
      const tall = bin.n ? Math.max(2, (40 * bin.n) / top) : 0;
      return h('button', { type: 'button', class: 'bar', disabled: !bin.n, 'aria-pressed': String(on), title: `reward ${name}: ${count(bin.n, 'rollout')}`, 'aria-label': `reward ${name}: ${count(bin.n, 'rollout')}`,
        on: { click: () => place.go(on ? { rmin: '', rmax: '' } : { rmin: low, rmax: high }) } },
      h('span', { class: 'n', 'aria-hidden': 'true' }, made.length <= 6 ? whole(bin.n) : ''),
      svg('svg', { viewBox: '0 0 10 40', preserveAspectRatio: 'none', 'aria-hidden': 'true', class: 'tall' }, svg('rect', { x: 0, y: 40 - tall, width: 10, height: tall })),
      h('span', { class: 'x', 'aria-hidden': 'true' }, short(bin.low)));
    });
    const none = passing.length - rewards.length;
    show(element, h('div', { class: 'bars', role: 'group', 'aria-label': 'rewards: choose a bar to list only those rollouts' }, bars),
      none ? h('p', { class: 'note' }, `${count(none, 'rollout')} without a reward`) : null);
  }

  winnow.histogram = { bins, draw };
})();
