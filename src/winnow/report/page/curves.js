'use strict';
/** The panels that `winnow plot` draws, of all runs in one: with several runs the colour is the run's and the dashes tell lines apart. */
(() => {
  const { h, svg, show } = winnow.dom;
  const { model, place, chart, foreign } = winnow;
  const HUES = ['blue', 'orange', 'green', 'purple', 'pink', 'teal', 'brown', 'grey'];
  const DASHES = Object.keys(chart.DASHES);
  const STEPS = 'training step'; // what a panel calls its x axis where it counts them

  const hue = (run) => HUES[run % HUES.length];
  const name = (run) => foreign.line(model.runs[run].name, 60);
  const hidden = (at) => new Set(at.hide.split(',').filter(Boolean).map(Number));

  function line(series, i, run) {
    const { label, x, y, style, color, axis, marker, error, band } = series;
    const own = { label, x, y, axis: axis ?? 1, marker, error, band };
    if (!model.several) return { ...own, dash: style in chart.DASHES ? style : 'solid', colour: HUES.includes(color) ? color : 'blue' };
    return { ...own, label: `${name(run)}: ${label}`, dash: DASHES[i % DASHES.length], colour: hue(run) };
  }

  /** The ends that hold a scale of every panel that draws on it; null, which fits it to the lines, where one has no ends. */
  function ends(panels, key, axis) {
    const given = panels.filter((panel) => panel.series.some((series) => (series.axis ?? 1) === axis)).map((panel) => panel[key]);
    if (!given.length || given.some((range) => !range)) return null;
    return [Math.min(...given.map(([low]) => low)), Math.max(...given.map(([, high]) => high))];
  }

  /** What the panels call an axis: each name once, of "tokens" and "tokens, probes included" the longer. */
  function label(panels, key) {
    const all = [...new Set(panels.map((panel) => panel[key]).filter(Boolean))];
    return all.filter((one) => !all.some((other) => other !== one && other.startsWith(one))).join(' / ') || null;
  }

  /** A link to the rollouts of a training step, of one run or of all; null where none are here. */
  function toRollouts(step, run = null) {
    const own = run === null ? model.runs.map((_, i) => i) : [run];
    const named = run !== null && model.several ? String(run) : '';
    return own.some((one) => model.has(one, step)) ? h('a', { href: place.address({ view: 'rollouts', run: named, step: String(step) }) }, 'its rollouts') : null;
  }

  /** Panels of one title are one chart. */
  function specs(without) {
    const titles = new Map();
    model.runs.forEach((run, r) => {
      if (!without.has(r)) for (const panel of run.panels ?? []) titles.set(panel.title, [...(titles.get(panel.title) ?? []), { ...panel, run: r }]);
    });
    return [...titles].map(([title, panels]) => ({
      title, x_label: label(panels, 'x_label') ?? '', link: panels.every((p) => p.x_label === STEPS) ? toRollouts : null, y_label: label(panels, 'y_label') ?? '', y2_label: label(panels, 'y2_label'),
      percent: panels.some((p) => p.percent), percent2: panels.some((p) => p.percent2), zero: panels.some((p) => p.zero),
      y_range: ends(panels, 'y_range', 1), y2_range: ends(panels, 'y2_range', 2),
      spans: panels.flatMap((p) => (p.spans ?? []).map((span) => ({ ...span, label: foreign.line(model.several ? `${name(p.run)}: ${span.label}` : span.label, 80) }))),
      lines: panels.flatMap((p) => p.series.map((series, i) => line(series, i, p.run))),
    }));
  }

  /** Buttons that show or hide a run in every chart; nothing with one run. */
  function toggles() {
    if (!model.several) return null;
    return h('div', { class: 'runs', role: 'group', 'aria-label': 'runs shown' }, model.runs.map((_, run) => {
      const mark = svg('svg', { viewBox: '0 0 10 10', width: 10, height: 10, 'aria-hidden': 'true' }, svg('rect', { width: 10, height: 10 }));
      mark.style.fill = `var(--${hue(run)})`;
      return h('button', { type: 'button', class: 'toggle', 'data-run': run, 'aria-pressed': 'true', on: { click: () => {
        const off = hidden(place.get());
        if (!off.delete(run)) off.add(run);
        place.go({ hide: [...off].join(',') });
      } } }, mark, ' ', name(run));
    }));
  }

  function section() {
    const grid = h('div', { class: 'charts' });
    const runs = toggles();
    let drawn = null;
    function update(at) {
      if (at.hide === drawn) return;
      drawn = at.hide;
      const off = hidden(at);
      runs?.querySelectorAll('[data-run]').forEach((box) => box.setAttribute('aria-pressed', String(!off.has(Number(box.dataset.run)))));
      const made = specs(off).map(chart.make);
      show(grid, made.length ? made : h('p', { class: 'nothing' }, 'No step is finished yet: there is nothing to draw.'));
    }
    return { element: h('section', { 'aria-labelledby': 'title-curves' }, h('h2', { id: 'title-curves' }, 'Curves'), runs, grid), update };
  }

  winnow.curves = { section, hue, name, hidden, toggles, specs, toRollouts, STEPS };
})();
