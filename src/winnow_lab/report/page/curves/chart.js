'use strict';
/**
 * One chart: lines of any number of runs over a shared axis, drawn by uPlot. Around the canvas is what a canvas
 * cannot show: a legend of buttons with the values under the pointer, a sentence for a screen reader, a table.
 *
 * A spec is {title, note, x_label, link, y_label, y2_label, percent, percent2, y_range, y2_range, zero, spans, lines}, a
 * line {label, x, y, dash, colour, axis, marker, error, band, around}. `around` is what the band is. Values of an axis of percents are shares. `link` gives
 * the link beside a point of the x axis; a click keeps the point, so that the link can be reached.
 */
(() => {
  const { h, svg, show, table, whenSeen, forget } = winnow.dom;
  const { known, short, compact, percent, whole } = winnow.numbers;
  const { theme, foreign, drawing, save } = winnow;
  const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 4], dashdot: [8, 4, 2, 4] };
  const HEIGHT = 250;
  const MOST_ROWS = 1000; // of a table of values
  const charts = new Set();
  const pointed = new Map(); // title and x axis of a chart -> x of the point last pointed at, in it or in its successor

  /** Whether a value has a place on the y axis. */
  const drawable = (y, logarithmic) => known(y) && (!logarithmic || y > 0);

  /** One list of x for all lines; undefined where a line has no point (uPlot draws on), null where it has a gap. */
  function join(lines, logarithmic = false) {
    const xs = [...new Set(lines.flatMap((line) => line.x))].filter(known).sort((a, b) => a - b);
    const place = new Map(xs.map((x, i) => [x, i]));
    const columns = lines.map((line) => {
      const column = new Array(xs.length).fill(undefined);
      line.x.forEach((x, i) => { if (place.has(x)) column[place.get(x)] = drawable(line.y[i], logarithmic) ? line.y[i] : null; });
      return column;
    });
    return [xs, ...columns];
  }

  /** A number above 0 to one digit, an end of a logarithmic axis: uPlot writes it beside the axis. */
  function oneDigit(x, round) {
    const size = 10 ** Math.floor(Math.log10(x));
    return Number((round(x / size - (round === Math.ceil ? 1e-9 : -1e-9)) * size).toPrecision(1));
  }

  /** [low, high] of the lines shown on an axis, with their errors and bands, and a little room. */
  function extent(lines, axis, given, logarithmic = false) {
    if (given && !logarithmic) return given;
    const values = lines.filter((line) => line.axis === axis && !line.hidden).flatMap((line) => [
      ...line.y, ...(line.raw ?? []), ...(line.error ?? []).flatMap((e, i) => (known(e) && known(line.y[i]) ? [line.y[i] - e, line.y[i] + e] : [])), ...(line.band ?? []).flat()]).filter((y) => drawable(y, logarithmic));
    if (!values.length) return logarithmic ? [0.1, 1] : [0, 1];
    let [low, high] = [Infinity, -Infinity];
    for (const x of values) { low = Math.min(low, x); high = Math.max(high, x); }
    if (logarithmic) {
      const ends = [oneDigit(low, Math.floor), oneDigit(high, Math.ceil)];
      return ends[0] < ends[1] ? ends : [low / 2, high * 2];
    }
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
    return [low >= 0 && low - room < 0 ? Math.min(0, low) : low - room, high + room];
  }

  const writer = (share) => (share ? percent : compact);

  function axis(scale, label, side, share) {
    const faint = () => theme.colour('hairline');
    return {
      scale, side, label: share ? label.replaceAll(' (%)', '') : label, labelSize: 18, labelGap: 2, labelFont: '11px system-ui, sans-serif', font: '11px system-ui, sans-serif', stroke: () => theme.colour('muted'),
      grid: { stroke: faint, width: 1, show: side !== 1 }, ticks: { stroke: faint, width: 1, size: 4 },
      values: (u, splits) => splits.map((x) => (known(x) ? writer(share)(x) : '')),
      size: side % 2 ? (u, values) => 16 + 6.5 * Math.max(2, ...(values ?? []).map((text) => text.length)) : 30,
    };
  }

  const shareOf = (spec, line) => (line.axis === 2 ? spec.percent2 : spec.percent);

  /** A sentence for who cannot see the lines. */
  function sentence(spec) {
    const sentences = spec.lines.map((line) => {
      const values = line.y.filter(known);
      const write = shareOf(spec, line) ? percent : short;
      return values.length ? `${line.label}: from ${write(values[0])} to ${write(values.at(-1))}` : `${line.label}: no value`;
    });
    return `${spec.title} over ${spec.x_label}. ${sentences.join('; ')}.`;
  }

  function legend(spec, toggle) {
    return spec.lines.map((line, i) => {
      const value = h('span', { class: 'value' });
      const dash = DASHES[line.dash] ?? [];
      const stroke = svg('line', { x1: 0, y1: 5, x2: 22, y2: 5, class: 'stroke' });
      stroke.style.stroke = `var(--${line.colour})`;
      stroke.style.strokeDasharray = dash.join(' ');
      line.value = value;
      const own = h('button', { type: 'button', class: 'key', 'aria-pressed': 'true', title: 'show or hide', on: { click: () => own.setAttribute('aria-pressed', String(toggle(i))) } },
        svg('svg', { viewBox: '0 0 22 10', width: 22, height: 10, 'aria-hidden': 'true' }, stroke), h('span', {}, line.label), value);
      return own;
    });
  }

  /** A line, and behind it the two ends of its band as lines of their own. */
  const withBand = (line) => (line.band ? [line, { ...line, label: `${line.label}: low`, y: line.band[0] }, { ...line, label: `${line.label}: high`, y: line.band[1] }] : [line]);

  /** [heads, rows] of all values, as numbers. */
  function numbersOf(spec) {
    const lines = spec.lines.flatMap((line) => withBand(line.raw ? { ...line, label: `${line.label}, averaged` } : line)).concat(spec.lines.filter((line) => line.raw).map((line) => ({ ...line, y: line.raw })));
    const [xs, ...columns] = join(lines);
    return { lines, heads: [spec.x_label, ...lines.map((line) => line.label)], rows: xs.map((x, i) => [x, ...columns.map((column) => column[i] ?? null)]) };
  }

  function values(spec) {
    const { lines, heads, rows } = numbersOf(spec);
    const every = Math.ceil(rows.length / MOST_ROWS);
    const written = rows.filter((_, i) => i % every === 0).map(([x, ...ys]) => [short(x), ...ys.map((y, k) => (shareOf(spec, lines[k]) ? percent : short)(y))]);
    return table(`values of ${spec.title}${every > 1 ? `, one row in ${every}` : ''}`, heads, written, 'numbers');
  }

  /** What is shaded, each thing once: bands of lines, and spans. */
  const shaded = (spec) => [...new Set([...spec.lines.map((line) => line.around), ...(spec.spans ?? []).map((span) => span.label)].filter(Boolean).map((text) => foreign.line(text, 80)))];

  /** The element of a chart, which draws itself once it is seen. */
  function make(spec) {
    for (const line of spec.lines) { line.axis ??= 1; line.label = foreign.line(line.label, 80); }
    const plot = h('div', { class: 'plot', role: 'img', tabindex: 0, 'aria-label': sentence(spec) });
    const at = h('span', { class: 'at' });
    const more = h('details', { class: 'values' }, h('summary', {}, 'values as a table'));
    more.addEventListener('toggle', () => { if (more.open && more.children.length === 1) more.append(values(spec)); });
    const whole = h('button', { type: 'button', class: 'quiet', hidden: true, on: { click: () => u.setScale('x', ends()) } }, 'whole range');
    const data = join(spec.lines, spec.log);
    const same = `${spec.title} ${spec.x_label}`;
    let u;
    const ends = () => ({ min: data[0][0], max: data[0].at(-1) });
    const keys = legend(spec, (i) => {
      spec.lines[i].hidden = !spec.lines[i].hidden;
      u?.setSeries(i + 1, { show: !spec.lines[i].hidden });
      return !spec.lines[i].hidden;
    });
    const figure = h('figure', { class: 'chart' }, h('figcaption', {}, h('h3', {}, spec.title), spec.note ? h('p', { class: 'note' }, spec.note) : null),
      plot, h('div', { class: 'keys', role: 'group', 'aria-label': `lines of ${spec.title}` }, at, keys, whole, shaded(spec).map((text) => h('span', { class: 'span' }, `shaded: ${text}`))),
      h('div', { class: 'under' }, more, save.buttons(spec, () => { const { heads, rows } = numbersOf(spec); return [heads, rows]; }, () => u?.ctx.canvas ?? null)));
    if (!data[0].length) { show(plot, h('p', { class: 'nothing' }, 'no values')); return figure; }

    /** The place of the value that a line has at a point: its own, else the last before it. */
    function placeOf(column, i) {
      let k = i;
      while (k >= 0 && !known(column[k])) k -= 1;
      return column[i] === null ? -1 : k; // null: a gap
    }

    /** The values at a point. They stay while the pointer is elsewhere, so that the link can be reached. */
    function showAt(i) {
      show(at, [`${spec.x_label} ${compact(data[0][i])} `, spec.link?.(data[0][i])]);
      spec.lines.forEach((line, k) => {
        const own = placeOf(data[k + 1], i);
        const value = own < 0 ? '' : (shareOf(spec, line) ? percent : short)(data[k + 1][own]);
        show(line.value, value, own >= 0 && own < i ? h('span', { class: 'since' }, ` at ${compact(data[0][own])}`) : null);
      });
    }

    function pointAt(chart) {
      const i = chart.cursor.idx;
      if (!known(i) || chart.cursor.left < 0) return;
      pointed.set(same, data[0][i]);
      showAt(i);
    }

    /** The place of the point last pointed at, in a chart of the same name that this one replaces too; -1 without one. */
    const last = () => (pointed.has(same) ? data[0].findLastIndex((x) => x <= pointed.get(same)) : -1);

    function options() {
      const integers = data[0].every(Number.isInteger);
      const scales = { x: { time: false }, y: { range: () => extent(spec.lines, 1, spec.y_range, spec.log), ...(spec.log ? { distr: 3 } : {}) } };
      const axes = [axis('x', spec.x_label, 2, false), axis('y', spec.y_label, 3, spec.percent)];
      if (integers) axes[0].incrs = [1, 2, 5].flatMap((n) => Array.from({ length: 13 }, (_, k) => n * 10 ** k)).sort((a, b) => a - b);
      if (spec.lines.some((line) => line.axis === 2)) {
        scales.y2 = { range: () => extent(spec.lines, 2, spec.y2_range, spec.log), ...(spec.log ? { distr: 3 } : {}) };
        axes.push(axis('y2', spec.y2_label ?? '', 1, spec.percent2));
      }
      return {
        width: plot.clientWidth, height: HEIGHT, scales, axes, legend: { show: false }, padding: [10, 10, 0, 0],
        cursor: { lock: true, sync: { key: `winnow ${spec.x_label}` }, drag: { x: true, y: false }, points: { size: 7 } },
        series: [{}, ...spec.lines.map((line) => ({ label: line.label, scale: line.axis === 2 ? 'y2' : 'y', stroke: () => theme.colour(line.colour), width: 1.8, dash: DASHES[line.dash], points: { size: 6, fill: () => theme.colour('panel'), ...(line.marker ? { show: true } : {}) }, show: !line.hidden }))],
        hooks: { drawAxes: [(c) => drawing.underneath(c, spec)], draw: [(c) => drawing.errors(c, spec)], setCursor: [pointAt],
          setScale: [(c, key) => { if (key === 'x') whole.hidden = c.scales.x.min <= data[0][0] && c.scales.x.max >= data[0].at(-1); }] },
      };
    }

    whenSeen(plot, () => {
      u = new uPlot(options(), data, plot);
      u.root.setAttribute('aria-hidden', 'true');
      charts.add(u);
      if (last() >= 0) showAt(last());
      new ResizeObserver(() => { if (plot.clientWidth) u.setSize({ width: plot.clientWidth, height: HEIGHT }); }).observe(plot);
    });
    plot.addEventListener('keydown', (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by || !u) return;
      event.preventDefault();
      event.stopPropagation();
      const i = Math.max(0, Math.min(data[0].length - 1, (u.cursor.left >= 0 && known(u.cursor.idx) ? u.cursor.idx : last()) + by));
      u.setCursor({ left: u.valToPos(data[0][i], 'x'), top: 20 });
    });
    return figure;
  }

  /** End the charts within an element that is about to be replaced: until then uPlot moves a cursor in each of them. */
  function clear(element) {
    forget(element);
    charts.forEach((u) => { if (element.contains(u.root)) { charts.delete(u); u.destroy(); } });
  }

  theme.listen(() => charts.forEach((u) => u.redraw(false, true)));
  winnow.chart = { make, clear, join, extent, sentence, whole, DASHES };
})();
