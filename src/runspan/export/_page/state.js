// What the page knows: the run's data, which never changes, and the few things that its reader does.

const run = JSON.parse(byId('run-data').textContent);
const slowRank = run.slow_rank ? run.slow_rank.rank : null;

/** A value that tells who watches it, at once and whenever it changes. */
function observable(initial) {
  let current = initial;
  const watchers = [];
  return {
    get value() { return current; },
    set(next) {
      current = next;
      for (const watcher of watchers) watcher(next);
    },
    watch(watcher) {
      watchers.push(watcher);
      watcher(current);
    },
  };
}

const shownRanks = observable(run.ranks);
const selectedSpan = observable(null);
const searchText = observable('');

/** How a rank is called in front of its row. */
function rankLabel(rank) {
  return rank === slowRank ? `${rank} ▲ slow` : `rank ${rank}`;
}

/** Reads `0-3,7` as those of `ranks`, all of them for an empty text; null for what cannot be read. */
function parseRanks(text, ranks) {
  if (!text.trim()) return ranks;
  const wanted = [];
  for (const piece of text.split(',')) {
    const match = /^\s*(\d+)\s*(?:-\s*(\d+)\s*)?$/.exec(piece);
    if (!match) return null;
    wanted.push([Number(match[1]), Number(match[2] ?? match[1])]);
  }
  return ranks.filter((rank) => wanted.some(([low, high]) => rank >= low && rank <= high));
}

// A span knows its rank and its end; one that is found by its id, also its parent.
const spansById = new Map();
for (const span of run.spans) {
  span.rank = run.traces[span.trace].rank;
  span.end_ns = span.start_ns + span.duration_ns;
  if (span.id) spansById.set(`${span.trace}/${span.id}`, span);
}

function parentOf(span) {
  return span.parent ? spansById.get(`${span.trace}/${span.parent}`) ?? null : null;
}

function spanWithId(id) {
  return run.spans.find((span) => span.id === id) ?? null;
}

/** Everything of a span that the search looks at. */
function searchable(span) {
  span.searchable ??= [span.name, span.id ?? '', span.status, span.message ?? '', ...Object.entries(span.attributes ?? {}).map(([key, value]) => `${key}=${value}`)].join('\n').toLowerCase();
  return span.searchable;
}

function matchesSearch(span) {
  const text = searchText.value.trim().toLowerCase();
  return !text || searchable(span).includes(text);
}
