// Curves of what was logged (by step) and of what was used (by time): one key at a time, a line for each rank.

/** The curves of a key, one for each rank: what its attempts logged, one behind the other. */
function seriesByRank(curves, key) {
  const ranks = new Set(shownRanks.value);
  const byRank = new Map();
  for (const curve of curves) {
    if (curve.key !== key || !ranks.has(curve.rank)) continue;
    const series = byRank.get(curve.rank) ?? { rank: curve.rank, label: `rank ${curve.rank}`, x: [], y: [], count: 0 };
    series.x = [...series.x, ...curve.x];
    series.y = [...series.y, ...curve.y];
    series.count += curve.count;
    series.last = curve.last;
    byRank.set(curve.rank, series);
  }
  return [...byRank.values()]
    .sort((one, other) => (one.rank === slowRank) - (other.rank === slowRank) || one.rank - other.rank)
    .map((series) => ({ ...series, bold: series.rank === slowRank && run.ranks.length > 8, isThinned: series.x.length < series.count, colour: rankColour(series.rank) }));
}

function rankLegend(list, series) {
  const isFew = run.ranks.length <= 8;
  const items = isFew
    ? series.map(({ rank, label }) => legendItem(rank === slowRank ? `${label} ▲ slow` : label, `var(--series-${run.ranks.indexOf(rank) + 1})`)).sort((one, other) => one.textContent.localeCompare(other.textContent, 'en', { numeric: true }))
    : [legendItem(`${formatCount(series.length, 'rank')}`, 'var(--neutral)'), ...(series.some(({ rank }) => rank === slowRank) ? [legendItem(`rank ${slowRank} ▲ slow`, 'var(--series-2)')] : [])];
  list.replaceChildren(...items);
}

function finiteRange(values) {
  const finite = values.filter((value) => typeof value === 'number');
  return finite.length ? finite.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]) : ['–', '–'];
}

/** A section with a choice of the key, a chart, and a table of its values by rank; it is hidden when there is no curve. */
function curveSection(section, curves, { prefix, label, xLabel, formatX, smallestX, formatOf, leftOut, hasTable = true }) {
  const keys = [...new Set(curves.map(({ key }) => key))];
  if (!keys.length) {
    section.hidden = true;
    return;
  }
  const pointsOf = (each) => curves.reduce((sum, curve) => sum + (curve.key === each ? curve.count : 0), 0);
  let key = keys.reduce((best, each) => (pointsOf(each) > pointsOf(best) ? each : best));
  const isLog = element('input', { type: 'checkbox', id: `${prefix}-log`, onchange: show });
  section.append(element('div', { class: 'tools' },
    ...labelledSelect(`${prefix}-key`, label, keys, key, (chosen) => { key = chosen; show(); }),
    element('label', {}, isLog, ' Logarithmic')));
  const chart = lineChart(section, { name: label, xLabel, formatX, smallestX });
  const legend = element('ul', { class: 'legend', 'aria-label': 'Ranks' });
  const note = element('p', { class: 'hint' });
  const table = element('table');
  section.append(legend, note);
  if (hasTable) section.append(element('details', {}, element('summary', {}, 'Values by rank'), element('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `${label}: values by rank` }, table)));

  function show() {
    const series = seriesByRank(curves, key);
    const format = formatOf(key);
    chart.show({ series, format, isLog: isLog.checked, title: key });
    rankLegend(legend, series);
    const [drawn, logged] = [series.reduce((sum, { x }) => sum + x.length, 0), series.reduce((sum, { count }) => sum + count, 0)];
    const gaps = series.reduce((sum, { y }) => sum + y.filter((value) => typeof value !== 'number').length, 0);
    const hidden = isLog.checked ? series.reduce((sum, { y }) => sum + y.filter((value) => typeof value === 'number' && value <= 0).length, 0) : 0;
    note.textContent = [
      drawn < logged ? `${drawn.toLocaleString('en')} of ${formatCount(logged, 'point')} are on this page: the least and greatest of each bucket of steps, which a band spans around its middle.` : '',
      gaps ? `${formatCount(gaps, 'point')} NaN or infinite, marked ×.` : '',
      hidden ? `${formatCount(hidden, 'point')} not above 0 cannot stand on a logarithmic scale.` : '',
      leftOut ? `${formatCount(leftOut, 'point')} of further curves are in the trace files only.` : '',
    ].filter(Boolean).join(' ');
    fillTable(table, {
      columns: [
        { title: 'Rank', number: true, cell: ({ rank }) => String(rank) },
        { title: 'Points', number: true, cell: ({ count }) => String(count) },
        { title: 'Last', number: true, cell: ({ last }) => format(last) },
        { title: 'Least', number: true, cell: ({ y }) => format(finiteRange(y)[0]) },
        { title: 'Greatest', number: true, cell: ({ y }) => format(finiteRange(y)[1]) },
      ],
      rows: [...series].sort((one, other) => one.rank - other.rank),
    });
  }
  shownRanks.watch(show);
}

function usageFormat(key) {
  if (key.endsWith('_util')) return formatShare;
  return key.includes('memory') ? formatBytes : formatNumber;
}
