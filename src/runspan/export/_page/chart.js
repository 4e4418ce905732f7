// Canvases that follow their size, the screen's density and the colour scheme; axes; line charts.

const darkScheme = matchMedia('(prefers-color-scheme: dark)');

function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Up to eight ranks have a colour each; of more, only the slow one stands out. */
function rankColour(rank) {
  if (run.ranks.length <= 8) return themeColour(`series-${run.ranks.indexOf(rank) + 1}`);
  return themeColour(rank === slowRank ? 'series-2' : 'neutral');
}

/** Puts a canvas into `host` and calls `draw(context, width, height)`, in CSS pixels, whenever it must be drawn anew. */
function drawnCanvas(host, properties, draw) {
  const canvas = element('canvas', properties);
  host.append(canvas);
  let isWaiting = false;
  function redraw() {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      const { clientWidth: width, clientHeight: height } = canvas;
      if (!width || !height) return;
      canvas.width = Math.round(width * devicePixelRatio);
      canvas.height = Math.round(height * devicePixelRatio);
      const context = canvas.getContext('2d');
      context.scale(devicePixelRatio, devicePixelRatio);
      context.font = '12px system-ui, sans-serif';
      draw(context, width, height);
    });
  }
  new ResizeObserver(redraw).observe(canvas);
  darkScheme.addEventListener('change', redraw);
  return { canvas, redraw };
}

/** Round numbers from `low` to `high`, about `count` of them, no closer than `smallest`. */
function ticksBetween(low, high, count, smallest = 0) {
  const rough = Math.max((high - low) / Math.max(1, count), smallest);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [];
  for (let index = Math.ceil(low / step); index * step <= high && ticks.length < 100; index += 1) ticks.push(index * step);
  return ticks;
}

function powersBetween(low, high, count) {
  const first = Math.ceil(Math.log10(low));
  const last = Math.floor(Math.log10(high));
  const stride = Math.max(1, Math.ceil((last - first + 1) / count));
  const ticks = [];
  for (let power = first; power <= last; power += stride) ticks.push(10 ** power);
  return ticks.length > 1 ? ticks : ticksBetween(low, high, count).filter((tick) => tick > 0);
}

/** Of a thinned curve: so many points hold a whole bucket of it, with its least and its greatest value. */
const POINTS_OF_A_COLUMN = 6;
const MARGIN = { left: 68, right: 26, top: 12, bottom: 34 };

/**
 * A chart of lines with one x axis. `show` takes series `{label, colour, bold, isThinned, x[], y[]}`, sorted by x; a y
 * that is no number is a gap, marked × below (NaN) or above it (infinite).
 */
function lineChart(host, { name, xLabel, formatX, smallestX }) {
  let shown = { series: [], format: formatNumber, isLog: false, title: '' };
  let scale = null;
  let cursor = null;
  const box = element('div', { class: 'chart' });
  host.append(box);
  const { canvas, redraw } = drawnCanvas(box, { tabindex: '0', role: 'img' }, draw);
  const tip = tipIn(box);

  function extent() {
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y } of shown.series) {
      if (!x.length) continue;
      left = Math.min(left, x[0]);
      right = Math.max(right, x[x.length - 1]);
      for (const value of y) {
        if (typeof value !== 'number' || (shown.isLog && value <= 0)) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    if (!(left <= right)) return null;
    if (!(low <= high)) [low, high] = shown.isLog ? [1, 10] : [0, 1];
    if (low === high) {
      const pad = Math.abs(low) * 0.1 || 1;
      [low, high] = shown.isLog ? [low / 2, high * 2] : [low - pad, high + pad];
    }
    return { left, right: right === left ? left + 1 : right, low, high };
  }

  function scaleFor(width, height) {
    const range = extent();
    if (!range) return null;
    const { left, right, low, high } = range;
    const [plotWidth, plotHeight] = [width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
    const share = shown.isLog
      ? (value) => (Math.log10(value) - Math.log10(low)) / (Math.log10(high) - Math.log10(low))
      : (value) => (value / 2 - low / 2) / (high / 2 - low / 2); // halved: the span of the largest floats is finite
    return {
      ...range,
      x: (value) => MARGIN.left + ((value - left) / (right - left)) * plotWidth,
      y: (value) => MARGIN.top + (1 - share(value)) * plotHeight,
      xAt: (pixel) => left + ((pixel - MARGIN.left) / plotWidth) * (right - left),
    };
  }

  function draw(context, width, height) {
    scale = scaleFor(width, height);
    if (!scale) return;
    drawAxes(context, width, height);
    for (const series of shown.series) drawSeries(context, series, height);
    if (cursor === null) return;
    context.strokeStyle = themeColour('soft');
    context.lineWidth = 1;
    context.strokeRect(Math.round(scale.x(cursor)) + 0.5, MARGIN.top, 0, height - MARGIN.top - MARGIN.bottom);
  }

  function drawAxes(context, width, height) {
    const bottom = height - MARGIN.bottom;
    context.strokeStyle = themeColour('line');
    context.fillStyle = themeColour('soft');
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    const ticks = (shown.isLog ? powersBetween : ticksBetween)(scale.low, scale.high, 5);
    for (const tick of ticks) {
      const y = Math.round(scale.y(tick)) + 0.5;
      context.strokeRect(MARGIN.left, y, width - MARGIN.left - MARGIN.right, 0);
      context.fillText(shown.format(tick), MARGIN.left - 7, y);
    }
    context.textAlign = 'center';
    for (const tick of ticksBetween(scale.left, scale.right, Math.max(2, width / 110), smallestX)) {
      context.fillText(formatX(tick), scale.x(tick), bottom + 11);
    }
    context.fillText(xLabel, (MARGIN.left + width - MARGIN.right) / 2, bottom + 26);
  }

  function drawSeries(context, series, height) {
    context.strokeStyle = series.colour;
    context.fillStyle = series.colour;
    context.lineWidth = series.bold ? 2.5 : 1.5;
    context.lineJoin = 'round';
    context.textAlign = 'center';
    const points = series.isThinned ? drawBand(context, series) : series;
    drawLine(context, points);
    series.y.forEach((value, index) => {
      if (typeof value !== 'string') return;
      context.fillText('×', scale.x(series.x[index]), value === 'Infinity' ? MARGIN.top : height - MARGIN.bottom - 5);
    });
  }

  const isDrawn = (value) => typeof value === 'number' && !(shown.isLog && value <= 0);

  function drawLine(context, { x, y }) {
    context.beginPath();
    let wasDrawn = false;
    y.forEach((value, index) => {
      if (isDrawn(value)) {
        const [left, top] = [scale.x(x[index]), scale.y(value)];
        if (wasDrawn) context.lineTo(left, top);
        else context.moveTo(left, top);
        if (!wasDrawn && !isDrawn(y[index + 1])) context.rect(left - 1, top - 1, 2, 2); // a point on its own
      }
      wasDrawn = isDrawn(value);
    });
    context.stroke();
  }

  /** Fills from the least to the greatest of each bucket of a thinned curve, and returns the line between them. */
  function drawBand(context, { x, y, bold }) {
    const plotWidth = scale.x(scale.right) - scale.x(scale.left);
    const columnCount = Math.max(1, Math.min(Math.floor(plotWidth / 2), Math.floor(x.length / POINTS_OF_A_COLUMN)));
    const columns = [];
    y.forEach((value, index) => {
      if (!isDrawn(value)) return;
      const number = Math.min(columnCount - 1, Math.floor(((scale.x(x[index]) - MARGIN.left) / plotWidth) * columnCount));
      const column = (columns[number] ??= { x: MARGIN.left + ((number + 0.5) / columnCount) * plotWidth, low: value, high: value });
      column.low = Math.min(column.low, value);
      column.high = Math.max(column.high, value);
    });
    const known = columns.filter(Boolean);
    if (bold || shown.series.length <= 8) {
      context.globalAlpha = 0.25;
      context.beginPath();
      for (const { x: left, high } of known) context.lineTo(left, scale.y(high));
      for (const { x: left, low } of known.toReversed()) context.lineTo(left, scale.y(low));
      context.fill();
      context.globalAlpha = 1;
    }
    const middle = ({ low, high }) => (shown.isLog ? Math.sqrt(low) * Math.sqrt(high) : low / 2 + high / 2);
    return { x: known.map((column) => scale.xAt(column.x)), y: known.map(middle) };
  }

  function nearest(series, x) {
    let [low, high] = [0, series.x.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (series.x[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low > 0 && x - series.x[low - 1] < series.x[low] - x ? low - 1 : low;
  }

  function pointAt(x) {
    const lines = shown.series.filter((series) => series.x.length).map((series) => ({ series, index: nearest(series, x) }));
    if (!lines.length) return;
    const closest = lines.reduce((best, line) => (Math.abs(line.series.x[line.index] - x) < Math.abs(best.series.x[best.index] - x) ? line : best));
    cursor = closest.series.x[closest.index];
    const texts = lines.slice(0, 9).map(({ series, index }) => `${series.label}: ${shown.format(series.y[index])}`);
    if (lines.length > 9) texts.push(`and ${lines.length - 9} more`);
    tip.show([`${xLabel} ${formatX(cursor)}`, ...texts].join('\n'), scale.x(cursor), MARGIN.top + 14);
    redraw();
  }

  function leave() {
    cursor = null;
    tip.hide();
    redraw();
  }

  canvas.addEventListener('pointermove', (event) => scale && pointAt(scale.xAt(event.offsetX)));
  canvas.addEventListener('pointerleave', leave);
  canvas.addEventListener('blur', leave);
  canvas.addEventListener('keydown', (event) => {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction || !scale) return;
    event.preventDefault();
    const { x } = shown.series.find((series) => series.x.length);
    const index = cursor === null ? 0 : Math.min(x.length - 1, Math.max(0, nearest({ x }, cursor) + direction));
    pointAt(x[index]);
  });

  return {
    show(next) {
      shown = { ...shown, ...next };
      const range = extent();
      const summary = range ? `from ${shown.format(range.low)} to ${shown.format(range.high)}, ${xLabel} ${formatX(range.left)} to ${formatX(range.right)}` : 'no points';
      canvas.setAttribute('aria-label', `${name}: ${shown.title}, ${formatCount(shown.series.length, 'line')}, ${summary}`);
      leave();
    },
  };
}
