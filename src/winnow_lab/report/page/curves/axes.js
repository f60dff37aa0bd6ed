'use strict';
/**
 * How curves are drawn, chosen once for all charts and kept in the address: what the x axis counts, over how many steps
 * a line is averaged, and whether the y axis is logarithmic.
 */
(() => {
  const { h, option } = winnow.dom;
  const { known } = winnow.numbers;
  const { model, place } = winnow;
  const STEPS = 'training step'; // what a panel calls its x axis where it counts them
  const KINDS = { // of x: what a person chooses, the label of the axis, and the metrics whose sums it is
    '': ['steps', STEPS, []],
    tokens: ['tokens', 'tokens sampled so far, probes included', ['budget/tokens_generated', 'budget/probe_tokens']],
    seconds: ['seconds', 'seconds of training so far', ['seconds/step', 'seconds/probe']],
  };
  const WIDTHS = ['', '5', '10', '25', '50', '100'];

  const kind = (at) => (Object.hasOwn(KINDS, at.x) ? at.x : '');

  /** {x, y} of a metric in a run, x being steps: the rows that have it. */
  function column(run, name) {
    const { steps = [], columns = {} } = run.metrics ?? {};
    const { at = [], y = [] } = Object.hasOwn(columns, name) ? columns[name] : {};
    const kept = y.map((value, i) => [steps[at ? at[i] : i], value]).filter(([, value]) => known(value));
    return { x: kept.map(([step]) => step), y: kept.map(([, value]) => value) };
  }

  /**
   * step -> what was spent before it, as an evaluation and the step's own numbers are of the weights of that time;
   * empty for a run that does not log it.
   */
  function spentBefore(run, names) {
    const spent = new Map();
    for (const name of names) {
      const { x, y } = column(run, name);
      x.forEach((step, i) => spent.set(step, (spent.get(step) ?? 0) + y[i]));
    }
    let sum = 0;
    return new Map((spent.size ? run.metrics.steps : []).map((step) => { const before = sum; sum += spent.get(step) ?? 0; return [step, before]; }));
  }

  /** The mean of each value and of those up to `width` - 1 places before it; a gap stays a gap. */
  function smooth(values, width) {
    return values.map((value, i) => {
      if (!known(value)) return value;
      const some = values.slice(Math.max(0, i - width + 1), i + 1).filter(known); // a running sum would keep 1e20
      return some.reduce((a, b) => a + b) / some.length;
    });
  }

  /**
   * A chart over steps with the chosen axes. Averaged lines keep their values as `raw`, and have no band: it is that of
   * single steps. Lines that are measured at some steps only (those with markers) are not averaged.
   */
  function chosen(spec, at) {
    const logarithmic = at.log === '1';
    const width = Number(at.smooth) > 1 ? Math.min(10000, Math.round(Number(at.smooth))) : 1;
    const own = { ...spec, log: logarithmic, lines: spec.lines.map((line) => (width > 1 && !line.marker ? { ...line, raw: line.y, y: smooth(line.y, width), band: null, around: null } : { ...line })) };
    if (spec.x_label !== STEPS || !kind(at)) return own;
    const [, label, names] = KINDS[kind(at)];
    const places = model.runs.map((run) => spentBefore(run, names));
    const steps = new Map(); // x -> [run, step], for the links to rollouts
    for (const line of own.lines) {
      line.x = line.x.map((step) => {
        const x = places[line.run ?? 0]?.get(step) ?? null;
        steps.set(x, [line.run ?? 0, step]);
        return x;
      });
    }
    const link = (x) => (steps.has(x) ? winnow.curves.toRollouts(steps.get(x)[1], steps.get(x)[0]) : null);
    return { ...own, x_label: label, link, spans: [] };
  }

  /** The controls, and `update`, which sets them to the place. */
  function controls() {
    const pick = (label, key, choices) => h('label', { class: 'inline' }, `${label} `, h('select', { 'data-axis': key, 'aria-label': label, on: { change: (event) => place.go({ [key]: event.target.value }) } }, choices.map(([value, text]) => option(value, text))));
    const log = h('input', { type: 'checkbox', 'data-axis': 'log', on: { change: (event) => place.go({ log: event.target.checked ? '1' : '' }) } });
    const element = h('div', { class: 'tools axes' }, pick('x axis', 'x', Object.entries(KINDS).map(([key, [text]]) => [key, text])),
      pick('smoothing', 'smooth', WIDTHS.map((width) => [width, width ? `mean of ${width} steps` : 'none'])), h('label', { class: 'inline' }, log, ' logarithmic y axis'));
    function update(at) {
      for (const select of element.querySelectorAll('select')) select.value = at[select.dataset.axis];
      log.checked = at.log === '1';
    }
    return { element, update };
  }

  /** What a chart's drawing depends on. */
  const key = (at) => [at.x, at.smooth, at.log].join(' ');

  winnow.axes = { STEPS, column, smooth, chosen, controls, key };
})();
