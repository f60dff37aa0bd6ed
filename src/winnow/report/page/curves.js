'use strict';
/** The panels that `winnow plot` draws, of all runs in one: with several runs the colour is the run's and the dashes tell lines apart. */
(() => {
  const { h, svg, show } = winnow.dom;
  const { model, place, chart, foreign } = winnow;
  const HUES = ['blue', 'orange', 'green', 'purple', 'pink', 'teal', 'brown', 'grey'];
  const DASHES = Object.keys(chart.DASHES);

  const hue = (run) => HUES[run % HUES.length];
  const name = (run) => foreign.line(model.runs[run].name, 60);
  const hidden = (at) => new Set(at.hide.split(',').filter(Boolean).map(Number));

  function line(series, i, run) {
    const { label, x, y, style, color, axis, marker, error, band } = series;
    const own = { label, x, y, axis: axis ?? 1, marker, error, band };
    if (!model.several) return { ...own, dash: style in chart.DASHES ? style : 'solid', colour: HUES.includes(color) ? color : 'blue' };
    return { ...own, label: `${name(run)}: ${label}`, dash: DASHES[i % DASHES.length], colour: hue(run) };
  }

  /** Panels of one title are one chart. */
  function specs(without) {
    const merged = new Map();
    model.runs.forEach((run, r) => {
      if (without.has(r)) return;
      for (const panel of run.panels ?? []) {
        const spec = merged.get(panel.title) ?? { ...panel, spans: [], lines: [] };
        merged.set(panel.title, spec);
        for (const key of ['y_range', 'y2_range']) if (spec[key] && panel[key]) spec[key] = [Math.min(spec[key][0], panel[key][0]), Math.max(spec[key][1], panel[key][1])];
        spec.spans.push(...(panel.spans ?? []).map((span) => ({ ...span, label: foreign.line(model.several ? `${name(r)}: ${span.label}` : span.label, 80) })));
        spec.lines.push(...panel.series.map((series, i) => line(series, i, r)));
      }
    });
    return [...merged.values()];
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

  winnow.curves = { section, hue, name, hidden, toggles, specs };
})();
