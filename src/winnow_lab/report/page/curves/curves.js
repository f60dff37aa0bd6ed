'use strict';
/**
 * The panels that `winnow plot` draws. With one run a chart is a panel. With several runs a chart is one quantity of a
 * panel, with a line for each run: the colour is the run's. A quantity has the same dashes in all charts.
 */
(() => {
  const { h, svg, show } = winnow.dom;
  const { model, place, chart, axes, foreign } = winnow;
  const { STEPS } = axes;
  const HUES = ['blue', 'orange', 'green', 'purple', 'pink', 'teal', 'brown', 'grey'];

  const hue = (run) => HUES[run % HUES.length];
  const name = (run) => foreign.line(model.runs[run].name, 60);
  /** The colour of a run, beside its numbers. */
  function dot(run) {
    const own = h('span', { class: 'dot', 'aria-hidden': 'true' });
    own.style.background = `var(--${hue(run)})`;
    return own;
  }

  const hidden = (at) => new Set(at.hide.split(',').filter(Boolean).map(Number));

  /** A line of a chart. `run` is null where the chart shows one run alone, whose quantities have colours of their own. */
  function line(series, run) {
    const { label, note, x, y, style, color, axis, marker, error, band, band_label: around } = series;
    const dash = style in chart.DASHES ? style : 'solid';
    const own = { x, y, axis: axis ?? 1, marker, error, band, around, dash, run: run ?? 0 };
    if (run === null) return { ...own, label, colour: HUES.includes(color) ? color : 'blue' };
    return { ...own, axis: 1, label: `${name(run)}${note ?? ''}`, colour: hue(run) };
  }

  /** The ends that hold the scales of all panels; null, which fits a scale to the lines, where one has no ends. */
  function ends(panels, key) {
    const given = panels.map((panel) => panel[key]);
    if (given.some((range) => !range)) return null;
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

  const ofTitles = (panels) => {
    const titles = new Map();
    for (const panel of panels) titles.set(panel.title, [...(titles.get(panel.title) ?? []), panel]);
    return [...titles.values()];
  };

  const spans = (panels) => panels.flatMap((p) => (p.spans ?? []).map((span) => ({ ...span, label: foreign.line(model.several ? `${name(p.run)}: ${span.label}` : span.label, 80) })));

  /** What charts of these panels have in common. */
  const shared = (panels) => ({
    x_label: label(panels, 'x_label') ?? '', link: panels.every((p) => p.x_label === STEPS) ? toRollouts : null, spans: spans(panels),
  });

  function whole(panel) {
    const { title, y_label, y2_label, percent, percent2, zero, y_range, y2_range } = panel;
    return { ...shared([panel]), title, y_label: y_label ?? '', y2_label, percent, percent2, zero, y_range, y2_range, lines: panel.series.map((series) => line(series, null)) };
  }

  /** The charts of panels of one title: one for each quantity, whose scale is that at which the panels draw it. */
  function apart(panels) {
    const quantities = [...new Set(panels.flatMap((p) => p.series.map((series) => series.quantity)))];
    return quantities.map((quantity) => {
      const own = panels.map((p) => ({ ...p, series: p.series.filter((series) => series.quantity === quantity) })).filter((p) => p.series.length);
      const right = own[0].series[0].axis === 2;
      const [y_label, percent, y_range] = right ? ['y2_label', 'percent2', 'y2_range'] : ['y_label', 'percent', 'y_range'];
      return {
        ...shared(own), title: quantities.length > 1 ? `${own[0].title} · ${quantity}` : own[0].title, y_label: label(own, y_label) ?? '', y2_label: null,
        percent: own.some((p) => p[percent]), percent2: false, zero: !right && own.some((p) => p.zero), y_range: ends(own, y_range), y2_range: null,
        lines: own.flatMap((p) => p.series.map((series) => line(series, p.run))),
      };
    });
  }

  function specs(without) {
    const panels = model.runs.flatMap((run, r) => (without.has(r) ? [] : (run.panels ?? []).map((panel) => ({ ...panel, run: r }))));
    return model.several ? ofTitles(panels).flatMap(apart) : panels.map(whole);
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
    const look = axes.controls();
    let drawn = null;
    function update(at) {
      look.update(at);
      const now = [at.hide, axes.key(at)].join(' ');
      if (now === drawn) return;
      drawn = now;
      const off = hidden(at);
      runs?.querySelectorAll('[data-run]').forEach((box) => box.setAttribute('aria-pressed', String(!off.has(Number(box.dataset.run)))));
      chart.clear(grid);
      const made = specs(off).map((spec) => chart.make(axes.chosen(spec, at)));
      show(grid, made.length ? made : h('p', { class: 'nothing' }, 'No step is finished yet: there is nothing to draw.'));
    }
    return { element: h('section', { 'aria-labelledby': 'title-curves' }, h('h2', { id: 'title-curves' }, 'Curves'), runs, look.element, grid), update };
  }

  winnow.curves = { section, hue, dot, name, hidden, toggles, specs, toRollouts };
})();
