// Puts the page together.

const STATUS = {
  success: ['good', '✓'], running: ['warn', '…'], failed: ['bad', '✗'], cancelled: ['warn', '■'], interrupted: ['bad', '⚡'], pending: ['soft', '·'],
};

function statusBadge(status) {
  const [look, sign] = STATUS[status] ?? ['soft', '·'];
  return element('span', { class: `status ${look}` }, `${sign} ${status}`);
}

function fact(label, value) {
  return value === null || value === undefined ? null : element('span', {}, `${label} `, element('b', {}, String(value)));
}

function buildHead() {
  const { run: info } = run;
  const errors = run.findings.filter(({ severity }) => severity === 'error').length;
  const warnings = run.findings.length - errors;
  const leftOut = [
    run.spans_left_out ? `the ${formatCount(run.spans_left_out, 'shortest span')}` : '',
    run.steps_left_out ? `${formatCount(run.steps_left_out, 'shorter step')} in the waterfall` : '',
    run.ranks_left_out ? formatCount(run.ranks_left_out, 'rank') : '',
    run.traces_left_out ? formatCount(run.traces_left_out, 'trace file') : '',
  ].filter(Boolean);
  byId('head').append(
    element('h1', {}, info.name ?? info.id, statusBadge(info.status)),
    element('div', { class: 'facts' },
      fact('run', info.name ? info.id : null), fact('experiment', info.experiment), fact('group', info.group), fact('started', formatTime(info.started_unix_ms)),
      fact('took', formatDuration(info.duration_ns)), fact('ranks', run.ranks.length === info.world_size ? info.world_size : `${run.ranks.length} of ${info.world_size}`),
      fact('device', run.meta.device), fact('entrypoint', run.meta.entrypoint),
      element('a', { href: '#findings' }, `${formatCount(errors, 'error')}, ${formatCount(warnings, 'warning')}`)),
    ...(info.reason ? [element('p', { class: 'notice' }, `Reason: ${info.reason}`)] : []),
    ...(leftOut.length ? [element('p', { class: 'notice', id: 'left-out' }, `To keep this page small it leaves out ${leftOut.join(', ')}; they are in the trace files.`)] : []),
  );
}

function buildContents() {
  for (const section of document.querySelectorAll('main section')) {
    if (!section.hidden) byId('contents').append(element('li', {}, element('a', { href: `#${section.id}` }, section.querySelector('h2').textContent)));
  }
}

function buildRankFilter() {
  const [input, answer] = [byId('ranks'), byId('ranks-answer')];
  input.addEventListener('input', () => {
    const ranks = parseRanks(input.value, run.ranks);
    input.setAttribute('aria-invalid', String(!ranks || !ranks.length));
    if (ranks && ranks.length) shownRanks.set(ranks);
    answer.textContent = !ranks ? 'write ranks as 0-3,7' : ranks.length ? `${ranks.length} of ${run.ranks.length}` : 'no such rank';
  });
  byId('rank-filter').addEventListener('submit', (event) => event.preventDefault());
}

function buildFindings(section) {
  if (!run.findings.length && !run.losses.length) {
    section.append(element('p', { class: 'good' }, '✓ Nothing is wrong with the trace files.'));
    return;
  }
  const table = element('table');
  const idCell = (id) => {
    const span = spanWithId(id);
    return span ? [spanButton(span, id), ' '] : [`${id} `];
  };
  fillTable(table, {
    columns: [
      { title: 'Severity', cell: ({ severity }) => element('span', { class: `severity ${severity === 'error' ? 'bad' : 'warn'}` }, severity === 'error' ? '✗ error' : '▲ warning') },
      { title: 'Code', cell: ({ code }) => element('code', {}, code) },
      { title: 'What was found', cell: ({ message }) => message },
      { title: 'File', cell: ({ files, file_count: count }) => (count > 1 ? `${files[0]} and ${count - 1} more` : files[0] ?? '') },
      { title: 'Concerns', cell: ({ ids }) => element('span', { class: 'mono' }, ids.flatMap(idCell)) },
    ],
    rows: run.findings,
  });
  section.append(element('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Findings' }, table));
  if (run.losses.length) {
    section.append(element('p', { class: 'notice' }, `Lost: ${run.losses.map(({ signal, reason, count }) => `${count} ${signal} (${reason})`).join(', ')}.`));
  }
}

function buildCaptures(section, waterfall) {
  if (!run.captures.length) {
    section.hidden = true;
    return;
  }
  const bounds = (ranks) => [Math.min(...ranks.map((rank) => rank.start_ns)), Math.max(...ranks.map((rank) => rank.end_ns))];
  const show = ({ ranks }) => {
    waterfall.show(...bounds(ranks));
    byId('waterfall').scrollIntoView();
  };
  const measured = ({ ranks }) => ranks.filter((rank) => rank.measured_ns !== null);
  const table = element('table');
  fillTable(table, {
    columns: [
      { title: 'Step', cell: (capture) => element('button', { type: 'button', class: 'link', onclick: () => show(capture) }, capture.name) },
      { title: 'Starts at', number: true, cell: ({ ranks }) => formatDuration(bounds(ranks)[0]) },
      { title: 'Ranks', number: true, cell: ({ ranks }) => String(ranks.length) },
      { title: 'Spans', number: true, cell: ({ ranks }) => String(ranks.reduce((sum, { spans }) => sum + spans, 0)) },
      { title: 'Longest', number: true, cell: (capture) => {
        const longest = measured(capture).reduce((best, rank) => (best && best.measured_ns >= rank.measured_ns ? best : rank), null);
        return longest ? `${formatDuration(longest.measured_ns)}, rank ${longest.rank}` : '–';
      } },
    ],
    rows: run.captures,
  });
  section.append(element('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Captured steps' }, table));
}

function buildEvents(section) {
  if (!run.events.length) {
    section.hidden = true;
    return;
  }
  const table = element('table');
  fillTable(table, {
    caption: run.events_left_out ? `The first ${run.events.length}; ${run.events_left_out.toLocaleString('en')} more are in the trace files` : null,
    columns: [
      { title: 'At', number: true, cell: ({ at_ns: at }) => formatDuration(at) },
      { title: 'Rank', number: true, cell: ({ rank }) => String(rank) },
      { title: 'Level', cell: ({ level }) => element('span', { class: { warning: 'warn', error: 'bad', critical: 'bad' }[level] ?? 'soft' }, level) },
      { title: 'Event', cell: ({ name }) => name },
      { title: 'Message', cell: ({ message }) => message },
    ],
    rows: run.events,
  });
  section.append(element('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Events' }, table));
}

function buildAbout(section) {
  const statuses = run.run.rank_statuses.map(({ rank, status }) => [`rank ${rank}`, status]);
  const attempts = run.traces.filter(({ capture, child }) => !capture && !child).map(({ rank, attempt, host, pid }) => [`rank ${rank}${attempt ? `, attempt ${attempt}` : ''}`, `${host}, process ${pid}`]);
  const groups = [
    ['Parameters', Object.entries(run.params)],
    ['Tags', Object.entries(run.tags)],
    ['Trace', Object.entries(run.meta).filter(([key]) => key !== 'tags')],
    ['Environment', Object.entries(run.environment)],
    ['Artifacts', run.artifacts.map(({ name, bytes, step }) => [name, `${formatBytes(bytes)}${step === null ? '' : `, step ${step}`}`])],
    ['Status of ranks', statuses.slice(0, 64)],
    ['Processes', attempts.slice(0, 64)],
    ['Resource', Object.entries(run.resource)],
  ];
  section.append(element('div', { class: 'groups' }, groups.filter(([, pairs]) => pairs.length).map(([title, pairs]) => element('div', {}, element('h3', {}, title), definitions(pairs)))));
}

const waterfall = buildWaterfall(byId('lanes'));
selectedSpan.watch((span) => showDetails(byId('details'), span));
for (const observed of [searchText, shownRanks]) observed.watch(() => showFound(byId('span-table'), byId('search-answer')));
byId('search').addEventListener('input', (event) => searchText.set(event.target.value));
curveSection(byId('metrics'), run.metrics, { prefix: 'metrics', label: 'Metric', xLabel: 'step', formatX: formatNumber, smallestX: 1, formatOf: () => formatNumber, leftOut: run.metric_points_left_out });
buildSteps(byId('steps'));
buildFindings(byId('findings'));
buildCaptures(byId('captures'), waterfall);
const usage = run.usage.sort((one, other) => one.key.endsWith('_total') - other.key.endsWith('_total'));
curveSection(byId('usage'), usage, { prefix: 'usage', label: 'Resource', xLabel: 'time', formatX: (seconds) => formatDuration(seconds * NS_PER_S), smallestX: 0, formatOf: usageFormat, leftOut: run.usage_points_left_out });
buildEvents(byId('events'));
buildAbout(byId('about'));
buildHead();
buildRankFilter();
buildContents();
