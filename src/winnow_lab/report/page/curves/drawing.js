'use strict';
/** What a chart has on its canvas beside its lines: uPlot draws lines only. */
(() => {
  const { known } = winnow.numbers;
  const { theme } = winnow;

  /** Where a value is on the canvas; on a logarithmic axis, one that has no logarithm is at the bottom. */
  function height(u, line, y) {
    const scale = line.axis === 2 ? 'y2' : 'y';
    return u.valToPos(u.scales[scale].distr === 3 && y <= 0 ? u.scales[scale].min : y, scale, true);
  }

  const across = (u, x) => u.valToPos(x, 'x', true);

  function band(u, line) {
    const { ctx } = u;
    const kept = line.x.map((_, i) => i).filter((i) => known(line.x[i]) && known(line.band[0][i]) && known(line.band[1][i]));
    ctx.globalAlpha = 0.15;
    ctx.fillStyle = theme.colour(line.colour);
    ctx.beginPath();
    kept.forEach((i) => ctx.lineTo(across(u, line.x[i]), height(u, line, line.band[1][i])));
    kept.reverse().forEach((i) => ctx.lineTo(across(u, line.x[i]), height(u, line, line.band[0][i])));
    ctx.fill();
  }

  /** The values of an averaged line, faint. */
  function raw(u, line) {
    const { ctx } = u;
    ctx.globalAlpha = 0.25;
    ctx.lineWidth = devicePixelRatio;
    ctx.strokeStyle = theme.colour(line.colour);
    ctx.beginPath();
    let gap = true;
    line.x.forEach((x, i) => {
      if (!known(line.raw[i]) || !known(x)) { gap = true; return; }
      ctx[gap ? 'moveTo' : 'lineTo'](across(u, x), height(u, line, line.raw[i]));
      gap = false;
    });
    ctx.stroke();
  }

  /** Spans, a line at zero, bands, and what lines were averaged from. */
  function underneath(u, spec) {
    const { ctx } = u;
    const { left, top, width, height: tall } = u.bbox;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, tall);
    ctx.clip();
    for (const span of spec.spans ?? []) {
      const [from, to] = [across(u, span.from), across(u, span.to)];
      ctx.globalAlpha = 0.25;
      ctx.fillStyle = theme.colour('grey');
      ctx.fillRect(from, top, to - from, tall);
    }
    ctx.globalAlpha = 1;
    if (spec.zero && !spec.log) {
      const at = u.valToPos(0, 'y', true);
      ctx.strokeStyle = theme.colour('grey');
      ctx.beginPath();
      ctx.moveTo(left, at);
      ctx.lineTo(left + width, at);
      ctx.stroke();
    }
    for (const line of spec.lines.filter((l) => !l.hidden)) {
      if (line.band) band(u, line);
      if (line.raw) raw(u, line);
    }
    ctx.restore();
  }

  /** One standard error up and down, over the lines. */
  function errors(u, spec) {
    const { ctx } = u;
    ctx.save();
    ctx.lineWidth = 1.5 * devicePixelRatio;
    for (const line of spec.lines.filter((l) => l.error && !l.hidden)) {
      ctx.strokeStyle = theme.colour(line.colour);
      ctx.beginPath();
      line.x.forEach((x, i) => {
        if (!known(x) || !known(line.error[i]) || !known(line.y[i])) return;
        const [at, low, high] = [across(u, x), height(u, line, line.y[i] - line.error[i]), height(u, line, line.y[i] + line.error[i])];
        ctx.moveTo(at, low);
        ctx.lineTo(at, high);
      });
      ctx.stroke();
    }
    ctx.restore();
  }

  winnow.drawing = { underneath, errors };
})();
