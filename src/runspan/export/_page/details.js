// The pane of the selected span, and the table of the spans that the search finds.

const MAX_FOUND = 100;

function spanButton(span, text = span.name) {
  return element('button', { type: 'button', class: 'link', onclick: () => selectedSpan.set(span) }, text);
}

function statusText(span) {
  if (span.status === 'error') return element('span', { class: 'bad' }, `! error${span.message ? `: ${span.message}` : ''}`);
  if (span.status === 'open') return element('span', { class: 'warn' }, '… open: it never ended; it is drawn up to the last line of its trace');
  return span.status;
}

function showDetails(pane, span) {
  if (!span) {
    pane.replaceChildren(element('h3', {}, 'No span selected'), element('p', { class: 'soft' }, 'Choose one in the waterfall or in the table to read its times, status and attributes.'));
    return;
  }
  const trace = run.traces[span.trace];
  const parent = parentOf(span);
  const attributes = Object.entries(span.attributes ?? {});
  pane.replaceChildren(
    element('h3', { id: 'details-name' }, span.name),
    definitions([
      ['Duration', formatDuration(span.duration_ns)],
      ['Nanoseconds', String(span.duration_ns)],
      ['Starts at', formatMoment(span.start_ns, span.duration_ns / 100)],
      ['Ends at', formatMoment(span.end_ns, span.duration_ns / 100)],
      ['Status', statusText(span)],
      ['Rank', `${trace.rank}${trace.attempt ? `, attempt ${trace.attempt}` : ''}${trace.child ? `, child ${trace.child}` : ''}`],
      ['Process', `${trace.host} ${trace.pid}`],
      ['Captured in', trace.capture],
      ['Phase', span.phase === 'step' ? null : span.phase],
      ['Parent', parent ? spanButton(parent) : span.parent],
      ['Id', span.id ? element('span', { class: 'mono' }, span.id) : null],
    ]),
    ...(attributes.length ? [element('h3', {}, 'Attributes'), definitions(attributes.map(([key, value]) => [key, String(value)]))] : []),
    ...(span.events ?? []).flatMap((event) => [
      element('h3', {}, `Event ${event.name}, after ${formatDuration(event.after_ns)}`),
      definitions(Object.entries(event.attributes).map(([key, value]) => [key, String(value)])) ?? '',
    ]),
  );
}

function showFound(table, answer) {
  const ranks = new Set(shownRanks.value);
  const found = run.spans.filter((span) => ranks.has(span.rank) && matchesSearch(span));
  const longest = [...found].sort((one, other) => other.duration_ns - one.duration_ns).slice(0, MAX_FOUND);
  answer.textContent = searchText.value.trim() ? `${formatCount(found.length, 'span')} found` : formatCount(found.length, 'span');
  fillTable(table, {
    caption: found.length > MAX_FOUND ? `The ${MAX_FOUND} longest of ${found.length.toLocaleString('en')}` : null,
    columns: [
      { title: 'Span', cell: (span) => spanButton(span) },
      { title: 'Rank', number: true, cell: (span) => String(span.rank) },
      { title: 'Starts at', number: true, cell: (span) => formatDuration(span.start_ns) },
      { title: 'Duration', number: true, cell: (span) => formatDuration(span.duration_ns) },
      { title: 'Status', cell: (span) => (span.status === 'unset' ? '' : statusText(span)) },
    ],
    rows: longest,
  });
}
