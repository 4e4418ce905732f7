// Spans over time: a group of rows for each rank, a bar for each span. One canvas shows the part that is scrolled to.

const AXIS_HEIGHT = 24;
const ROW_HEIGHT = 18;
const BAR_HEIGHT = 15;
const GROUP_GAP = 10;
const GUTTER = 78;
const VIEW_HEIGHT = 416;
const MIN_WIDTH_NS = 100;
/** Neighbours that overlap by less than this share are still neighbours: their times come from two clocks. */
const OVERLAP = 0.05;

/** Gives each span of a rank its row: below its parent, in the first row where nothing else is at its time. */
function layOutRows(spans) {
  const ends = [];
  const ordered = [...spans].sort((one, other) => one.start_ns - other.start_ns || other.duration_ns - one.duration_ns);
  for (const span of ordered) {
    const parent = parentOf(span);
    let row = parent && parent.row !== undefined ? parent.row + 1 : 0;
    while (ends[row] !== undefined && ends[row] > span.start_ns + span.duration_ns * OVERLAP) row += 1;
    span.row = row;
    ends[row] = Math.max(ends[row] ?? 0, span.end_ns);
    for (let above = 0; above < row; above += 1) ends[above] ??= 0;
  }
  return { spans: ordered, rowCount: Math.max(1, ends.length) };
}

/** The seven names that take most time, in colours; what only holds other spans, and the rest, in grey. */
function spanColours() {
  const structure = new Set(['run', 'rank', 'step']);
  const totals = new Map();
  for (const span of run.spans) {
    if (span.phase !== 'step' && !structure.has(span.name)) totals.set(span.name, (totals.get(span.name) ?? 0) + span.duration_ns);
  }
  const names = [...totals.entries()].sort((one, other) => other[1] - one[1]).map(([name]) => name);
  const colours = new Map(names.slice(0, 7).map((name, index) => [name, `series-${index + 1}`]));
  const hasOthers = names.length > 7;
  return {
    of: (span) => colours.get(span.name) ?? (structure.has(span.name) || span.phase === 'step' ? 'structure' : 'neutral'),
    legend: [...colours, ...(hasOthers ? [['other spans', 'neutral']] : []), ['run, rank and steps', 'structure']],
  };
}

function buildWaterfall(host) {
  const layouts = new Map(run.ranks.map((rank) => [rank, layOutRows(run.spans.filter((span) => span.rank === rank))]));
  const colours = spanColours();
  const whole = wholeRange();
  let view = { ...whole };
  let groups = [];
  let bars = [];
  const spacer = element('div');
  const { canvas, redraw } = drawnCanvas(host, {
    tabindex: '0', role: 'application', 'aria-roledescription': 'waterfall', 'aria-label': 'Spans over time, by rank', 'aria-describedby': 'waterfall-help',
  }, draw);
  host.append(spacer);
  const tip = tipIn(host);

  function wholeRange() {
    let end = 1;
    let start = Infinity;
    for (const span of run.spans) {
      end = Math.max(end, span.end_ns);
      start = Math.min(start, span.start_ns);
    }
    return { start: Math.min(0, start), end: Math.max(end, run.run.duration_ns) };
  }

  function placeGroups() {
    let top = AXIS_HEIGHT + GROUP_GAP / 2;
    groups = shownRanks.value.map((rank) => {
      const layout = layouts.get(rank);
      const group = { rank, ...layout, top, height: layout.rowCount * ROW_HEIGHT };
      top += group.height + GROUP_GAP;
      return group;
    });
    const height = Math.max(top, 80);
    const visible = Math.min(height, VIEW_HEIGHT - 2);
    canvas.style.height = `${visible}px`;
    spacer.style.height = `${height - visible}px`;
    redraw();
  }

  function xOf(timeNs, width) {
    return GUTTER + ((timeNs - view.start) / (view.end - view.start)) * (width - GUTTER);
  }

  function timeAt(x) {
    return view.start + ((x - GUTTER) / (canvas.clientWidth - GUTTER)) * (view.end - view.start);
  }

  function draw(context, width, height) {
    bars = [];
    const isSearching = Boolean(searchText.value.trim());
    const theme = Object.fromEntries([...new Set(colours.legend.map(([, name]) => name)), 'neutral', 'text', 'span-text', 'soft', 'line', 'bad', 'alarm', 'card'].map((name) => [name, themeColour(name)]));
    context.fillStyle = theme.card;
    context.fillRect(0, 0, width, height);
    context.textBaseline = 'middle';
    const ticks = ticksBetween(view.start, view.end, Math.max(2, (width - GUTTER) / 120));
    drawGrid(context, ticks, width, height, theme);
    for (const group of groups) {
      const top = group.top - host.scrollTop;
      if (top + group.height < 0 || top > height) continue;
      drawGroup(context, group, top, width, theme, isSearching);
    }
    drawTimes(context, ticks, width, theme);
  }

  function drawGrid(context, ticks, width, height, theme) {
    context.strokeStyle = theme.line;
    for (const tick of ticks) {
      const x = Math.round(xOf(tick, width)) + 0.5;
      if (x > GUTTER) context.strokeRect(x, AXIS_HEIGHT - 4, 0, height);
    }
  }

  function drawGroup(context, group, top, width, theme, isSearching) {
    context.fillStyle = group.rank === slowRank ? theme.bad : theme.soft;
    context.textAlign = 'left';
    context.fillText(rankLabel(group.rank), 8, top + BAR_HEIGHT / 2);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, width - GUTTER, 1e6);
    context.clip();
    for (const span of group.spans) {
      const left = xOf(span.start_ns, width);
      const right = xOf(span.end_ns, width);
      if (right < GUTTER || left > width) continue;
      const bar = { span, x: Math.max(left, GUTTER), y: top + span.row * ROW_HEIGHT, width: Math.max(1, Math.min(right, width) - Math.max(left, GUTTER)) };
      bars.push(bar);
      drawBar(context, bar, theme, !isSearching || matchesSearch(span));
    }
    context.restore();
    context.strokeStyle = theme.line;
    context.strokeRect(0, Math.round(top + group.height + GROUP_GAP / 2 - 1) + 0.5, width, 0);
  }

  function drawBar(context, { span, x, y, width }, theme, isMatch) {
    context.globalAlpha = isMatch ? 1 : 0.15;
    context.fillStyle = theme[colours.of(span)];
    const gap = width > 3 ? 0.5 : 0;
    context.fillRect(x, y, width - gap, BAR_HEIGHT);
    if (span.status === 'error' || span.status === 'open') {
      context.fillStyle = theme.alarm;
      context.fillRect(x, y + BAR_HEIGHT - 3, width - gap, 3);
    }
    const name = span.status === 'error' ? `! ${span.name}` : span.name;
    const room = Math.floor((width - 8) / 6.6);
    if (room >= 3) {
      context.fillStyle = colours.of(span) === 'structure' ? theme.text : theme['span-text'];
      context.textAlign = 'left';
      context.fillText(name.length > room ? `${name.slice(0, room - 1)}…` : name, x + 4, y + BAR_HEIGHT / 2 + 0.5);
    }
    context.globalAlpha = 1;
    if (span === selectedSpan.value) {
      context.strokeStyle = theme.text;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y, Math.max(2, width - 2), BAR_HEIGHT);
      context.lineWidth = 1;
    }
  }

  function drawTimes(context, ticks, width, theme) {
    context.fillStyle = theme.card;
    context.fillRect(0, 0, width, AXIS_HEIGHT - 4);
    context.fillStyle = theme.soft;
    context.textAlign = 'center';
    for (const tick of ticks) {
      const x = xOf(tick, width);
      if (x > GUTTER + 20 && x < width - 30) context.fillText(formatMoment(tick, ticks[1] - ticks[0]), x, AXIS_HEIGHT / 2);
    }
    context.strokeStyle = theme.line;
    context.strokeRect(0, AXIS_HEIGHT - 3.5, width, 0);
  }

  function show(start, end) {
    const length = Math.min(Math.max(end - start, MIN_WIDTH_NS), whole.end - whole.start);
    const from = Math.min(Math.max(start, whole.start), whole.end - length);
    view = { start: from, end: from + length };
    tip.hide();
    redraw();
  }

  function zoom(factor, centre = (view.start + view.end) / 2) {
    show(centre - (centre - view.start) * factor, centre + (view.end - centre) * factor);
  }

  function zoomTo(span) {
    show(span.start_ns - span.duration_ns * 0.1, span.end_ns + span.duration_ns * 0.1);
  }

  /** Brings a span into view: sideways only if it is not there, or too small to be seen. */
  function reveal(span) {
    const group = groups.find(({ rank }) => rank === span.rank);
    if (!group) return;
    const isOutside = span.end_ns < view.start || span.start_ns > view.end;
    const isTiny = span.duration_ns < (view.end - view.start) / 400;
    if (isOutside || isTiny) show(span.start_ns - span.duration_ns * 4, span.end_ns + span.duration_ns * 4);
    const y = group.top + span.row * ROW_HEIGHT;
    if (y < host.scrollTop + AXIS_HEIGHT || y + ROW_HEIGHT > host.scrollTop + canvas.clientHeight) host.scrollTop = y - canvas.clientHeight / 2;
    redraw();
  }

  function barAt({ offsetX: x, offsetY: y }) {
    if (y < AXIS_HEIGHT || x < GUTTER) return null;
    return bars.findLast((bar) => y >= bar.y && y < bar.y + ROW_HEIGHT && x >= bar.x - 1.5 && x <= bar.x + bar.width + 1.5) ?? null;
  }

  /** The span that an arrow key leads to: along the row, to the parent, or into the first child. */
  function neighbour(span, key) {
    if (!span) return groups[0]?.spans[0] ?? null;
    const { spans } = layouts.get(span.rank);
    if (key === 'ArrowUp') {
      return parentOf(span) ?? spans.findLast((other) => other.row < span.row && other.start_ns <= span.start_ns && other.end_ns >= span.start_ns) ?? previousRank(span);
    }
    if (key === 'ArrowDown') {
      return spans.find((other) => other.row > span.row && other.start_ns >= span.start_ns && other.start_ns <= span.end_ns) ?? nextRank(span);
    }
    const row = spans.filter((other) => other.row === span.row);
    return row[row.indexOf(span) + (key === 'ArrowRight' ? 1 : -1)] ?? null;
  }

  function nextRank(span) {
    return groups[groups.findIndex(({ rank }) => rank === span.rank) + 1]?.spans[0] ?? null;
  }

  function previousRank(span) {
    return groups[groups.findIndex(({ rank }) => rank === span.rank) - 1]?.spans[0] ?? null;
  }

  let drag = null;
  canvas.addEventListener('pointerdown', (event) => {
    drag = { x: event.offsetX, start: view.start, end: view.end, hasMoved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    if (drag) {
      const moved = event.offsetX - drag.x;
      drag.hasMoved ||= Math.abs(moved) > 4;
      const shift = (moved / (canvas.clientWidth - GUTTER)) * (drag.end - drag.start);
      if (drag.hasMoved) show(drag.start - shift, drag.end - shift);
      return;
    }
    const bar = barAt(event);
    if (bar) tip.show(`${bar.span.name}\nrank ${bar.span.rank}, ${formatDuration(bar.span.duration_ns)}, from ${formatMoment(bar.span.start_ns, bar.span.duration_ns / 10)}`, event.offsetX, event.offsetY + host.scrollTop + 20);
    else tip.hide();
  });
  canvas.addEventListener('pointerup', (event) => {
    if (drag && !drag.hasMoved) selectedSpan.set(barAt(event)?.span ?? null);
    drag = null;
  });
  canvas.addEventListener('pointercancel', () => { drag = null; });
  canvas.addEventListener('pointerleave', () => tip.hide());
  canvas.addEventListener('dblclick', (event) => {
    const bar = barAt(event);
    if (bar) zoomTo(bar.span);
  });
  canvas.addEventListener('wheel', (event) => {
    if (event.ctrlKey || event.metaKey) zoom(1.2 ** Math.sign(event.deltaY), timeAt(event.offsetX));
    else if (event.deltaX) show(view.start + (event.deltaX / canvas.clientWidth) * (view.end - view.start), view.end + (event.deltaX / canvas.clientWidth) * (view.end - view.start));
    else return;
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith('Arrow')) {
      const next = neighbour(selectedSpan.value, event.key);
      if (next) selectedSpan.set(next);
    } else if (event.key === '+' || event.key === '=') zoom(0.5);
    else if (event.key === '-') zoom(2);
    else if (event.key === '0') show(whole.start, whole.end);
    else if (event.key === 'Enter' && selectedSpan.value) zoomTo(selectedSpan.value);
    else if (event.key === 'Escape') selectedSpan.set(null);
    else return;
    event.preventDefault();
  });
  host.addEventListener('scroll', redraw);
  byId('zoom-in').addEventListener('click', () => zoom(0.5));
  byId('zoom-out').addEventListener('click', () => zoom(2));
  byId('zoom-all').addEventListener('click', () => show(whole.start, whole.end));
  byId('span-legend').append(...colours.legend.map(([name, colour]) => legendItem(name, `var(--${colour})`)));
  shownRanks.watch(placeGroups);
  searchText.watch(redraw);
  selectedSpan.watch((span) => (span ? reveal(span) : redraw()));
  return { show };
}

function legendItem(text, colour) {
  const swatch = element('span', { class: 'swatch', 'aria-hidden': 'true' });
  swatch.style.setProperty('--swatch', colour);
  return element('li', {}, swatch, text);
}
