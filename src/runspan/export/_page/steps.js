// How long steps take: curves, a heat map of ranks and steps, and a row for each rank, the slow one marked.

const HEAT_GUTTER = 78;
const HEAT_AXIS = 22;
/** Room for the upper half of the first label. */
const HEAT_TOP = 7;
const LABEL_HEIGHT = 14;

function mixedColour(low, high, share) {
  const channels = (colour) => [1, 3, 5].map((index) => parseInt(colour.slice(index, index + 2), 16));
  const [from, to] = [channels(low), channels(high)];
  return `rgb(${from.map((channel, index) => Math.round(channel + (to[index] - channel) * share)).join(' ')})`;
}

function heatMap(section) {
  const { grid } = run.steps;
  let rows = [];
  const box = element('div', { class: 'heat', tabindex: '0', role: 'region', 'aria-label': 'Own work by rank and step' });
  section.append(box);
  const { canvas, redraw } = drawnCanvas(box, { role: 'img' }, draw);
  const tip = tipIn(box);
  const known = grid.rows.flatMap(({ mean_ns: means }) => means.filter((mean) => mean !== null)).sort((one, other) => one - other);
  const [low, high] = [known[0], known[Math.floor((known.length - 1) * 0.99)]];
  const columnCount = grid.rows[0].mean_ns.length;
  section.append(element('p', { class: 'hint' },
    `Own work of a step by rank: mean of ${grid.column_steps === 1 ? 'each step' : `${grid.column_steps} steps a cell`}, faint ${formatDuration(low)} to strong ${formatDuration(high)} and more. What a rank waits for others is not its own work.`));

  function heatRowHeight() {
    return rows.length > 64 ? 5 : 18;
  }

  function draw(context, width, height) {
    const [lightest, strongest] = [themeColour('heat-low'), themeColour('heat-high')];
    const rowHeight = heatRowHeight();
    const columnWidth = (width - HEAT_GUTTER) / columnCount;
    const labelStride = Math.ceil(LABEL_HEIGHT / rowHeight);
    const slowIndex = rows.findIndex(({ rank }) => rank === slowRank);
    context.textBaseline = 'middle';
    rows.forEach(({ rank, mean_ns: means }, index) => {
      const top = HEAT_TOP + index * rowHeight;
      means.forEach((mean, column) => {
        if (mean === null) return;
        context.fillStyle = mixedColour(lightest, strongest, high > low ? Math.min(1, (mean - low) / (high - low)) : 0);
        context.fillRect(HEAT_GUTTER + column * columnWidth, top, Math.max(1, columnWidth + 0.4), Math.max(1, rowHeight - (rowHeight > 6 ? 1.5 : 0)));
      });
      const isSlow = index === slowIndex;
      const hasRoom = index % labelStride === 0 && (slowIndex < 0 || Math.abs(index - slowIndex) >= labelStride);
      context.fillStyle = themeColour(isSlow ? 'bad' : 'soft');
      if (hasRoom || isSlow) context.fillText(rankLabel(rank), 8, top + rowHeight / 2);
    });
    context.fillStyle = themeColour('soft');
    context.textAlign = 'center';
    const lastStep = grid.first_step + columnCount * grid.column_steps;
    for (const tick of ticksBetween(grid.first_step, lastStep, Math.max(2, width / 110), 1)) {
      const x = HEAT_GUTTER + ((tick - grid.first_step) / grid.column_steps + 0.5) * columnWidth;
      if (x < width - 12) context.fillText(String(tick), x, height - HEAT_AXIS / 2);
    }
    context.textAlign = 'left';
    context.fillText('step', 8, height - HEAT_AXIS / 2);
  }

  canvas.addEventListener('pointermove', ({ offsetX, offsetY }) => {
    const row = rows[Math.floor((offsetY - HEAT_TOP) / heatRowHeight())];
    const column = Math.floor(((offsetX - HEAT_GUTTER) / (canvas.clientWidth - HEAT_GUTTER)) * columnCount);
    const mean = row?.mean_ns[column];
    if (mean === undefined || mean === null) return tip.hide();
    const first = grid.first_step + column * grid.column_steps;
    const steps = grid.column_steps === 1 ? `step ${first}` : `steps ${first} to ${first + grid.column_steps - 1}`;
    return tip.show(`rank ${row.rank}, ${steps}\n${formatDuration(mean)}`, offsetX, offsetY);
  });
  canvas.addEventListener('pointerleave', () => tip.hide());
  shownRanks.watch((ranks) => {
    const wanted = new Set(ranks);
    rows = grid.rows.filter(({ rank }) => wanted.has(rank));
    canvas.style.height = `${HEAT_TOP + Math.max(1, rows.length) * heatRowHeight() + HEAT_AXIS}px`;
    canvas.setAttribute('aria-label', `Heat map of the own work of ${formatCount(rows.length, 'rank')} over ${formatCount(columnCount * grid.column_steps, 'step')}${slowRank === null ? '' : `; rank ${slowRank} is slow`}`);
    redraw();
  });
}

function buildSteps(section) {
  const { curves, ranks } = run.steps;
  if (!ranks.length) {
    section.hidden = true;
    return;
  }
  if (run.slow_rank) {
    const { rank, own_median_ns: own, others_median_ns: others, phase } = run.slow_rank;
    section.append(element('p', { class: 'notice' }, element('b', {}, `▲ Rank ${rank} is slow: `),
      `its own work of a step takes ${formatDuration(own)}, that of the others ${formatDuration(others)}${phase ? `, most of it in ${phase}` : ''}.`));
  }
  curveSection(section, curves, { prefix: 'steps', label: 'Duration', xLabel: 'step', formatX: formatNumber, smallestX: 1, formatOf: () => formatDuration, leftOut: 0, hasTable: false });
  heatMap(section);
  const table = element('table');
  section.append(element('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Step times by rank' }, table));
  shownRanks.watch((shown) => {
    const wanted = new Set(shown);
    fillTable(table, {
      columns: [
        { title: 'Rank', number: true, cell: ({ rank }) => String(rank) },
        { title: 'Steps', number: true, cell: ({ count }) => String(count) },
        { title: 'Median', number: true, cell: ({ median_ns: median }) => formatDuration(median) },
        { title: 'Own work', number: true, cell: ({ own_median_ns: own }) => formatDuration(own) },
        { title: '95 %', number: true, cell: ({ p95_ns: p95 }) => formatDuration(p95) },
        { title: 'Longest', number: true, cell: ({ max_ns: longest }) => formatDuration(longest) },
        { title: 'Phases', cell: ({ rank, phases }) => `${rank === slowRank ? '▲ slow. ' : ''}${phases.map(({ name, median_ns: median }) => `${name} ${formatDuration(median)}`).join(', ')}` },
      ],
      rows: ranks.filter(({ rank }) => wanted.has(rank)),
      rowProperties: ({ rank }) => ({ class: rank === slowRank ? 'slow' : null }),
    });
  });
}
