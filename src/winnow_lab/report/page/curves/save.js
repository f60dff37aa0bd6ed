'use strict';
/** A chart as a file of the reader's: its values as CSV, its picture as PNG. Nothing leaves the browser. */
(() => {
  const { svg, h, button } = winnow.dom;
  const { theme } = winnow;
  const MARGIN = 12;
  const LINE = 20;

  /** Hand a file to the browser. The address is made here: elements elsewhere lead to places of this page only. */
  function hand(name, blob) {
    const address = URL.createObjectURL(blob);
    const link = h('a', { download: name });
    link.setAttribute('href', address);
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  const fileName = (title, ending) => `${title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || 'chart'}.${ending}`;

  /** A cell of CSV (RFC 4180). A text that a spreadsheet would calculate begins with an apostrophe. */
  function cell(value) {
    if (value === null || value === undefined) return '';
    if (typeof value === 'number') return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  /** Heads and rows as the text of a CSV file. */
  const csv = (heads, rows) => [heads, ...rows].map((row) => row.map(cell).join(',')).join('\r\n') + '\r\n';

  /** The chart's canvas under its title, over its legend, on the page's paper. */
  function picture(spec, canvas) {
    const scale = devicePixelRatio || 1;
    const lines = spec.lines.filter((line) => !line.hidden);
    const made = document.createElement('canvas');
    made.width = canvas.width + 2 * MARGIN * scale;
    made.height = canvas.height + (2 * MARGIN + LINE * (1 + lines.length)) * scale;
    const ctx = made.getContext('2d');
    ctx.fillStyle = theme.colour('panel');
    ctx.fillRect(0, 0, made.width, made.height);
    ctx.textBaseline = 'middle';
    const write = (text, x, y, weight) => {
      ctx.font = `${weight} ${13 * scale}px ${theme.colour('text')}`;
      ctx.fillStyle = theme.colour('ink');
      ctx.fillText(text, x * scale, y * scale, made.width - (x + MARGIN) * scale);
    };
    write(spec.title, MARGIN, MARGIN + LINE / 2, '600');
    ctx.drawImage(canvas, MARGIN * scale, (MARGIN + LINE) * scale);
    lines.forEach((line, i) => {
      const y = canvas.height / scale + MARGIN + LINE * (i + 1.5);
      ctx.strokeStyle = theme.colour(line.colour);
      ctx.lineWidth = 2 * scale;
      ctx.setLineDash(winnow.chart.DASHES[line.dash].map((x) => x * scale));
      ctx.beginPath();
      ctx.moveTo(MARGIN * scale, y * scale);
      ctx.lineTo((MARGIN + 28) * scale, y * scale);
      ctx.stroke();
      write(line.label, MARGIN + 36, y, '400');
    });
    return made;
  }

  /** The buttons of a chart. `values` returns its heads and rows; `canvas` what is drawn, or null before it is. */
  function buttons(spec, values, canvas) {
    const icon = () => svg('svg', { viewBox: '0 0 10 10', width: 10, height: 10, 'aria-hidden': 'true' }, svg('path', { d: 'M5 0v6M2 4l3 3 3-3M0 9h10', class: 'stroke down' }));
    const asCsv = button([icon(), ' CSV'], () => hand(fileName(spec.title, 'csv'), new Blob([csv(...values())], { type: 'text/csv' })), { class: 'quiet', 'aria-label': `save the values of ${spec.title} as CSV` });
    const asPng = button([icon(), ' PNG'], () => { if (canvas()) picture(spec, canvas()).toBlob((blob) => hand(fileName(spec.title, 'png'), blob)); }, { class: 'quiet', 'aria-label': `save the chart ${spec.title} as PNG` });
    return h('span', { class: 'save' }, asCsv, asPng);
  }

  winnow.save = { buttons, csv, picture };
})();
