"""Questions to a run's tables that have a name, in SQL."""

from __future__ import annotations

from runspan.tracefile.steptimes import COLLECTIVE_PHASES

__all__ = ["READY_MADE"]

_WAITING = ", ".join(f"'{phase}'" for phase in sorted(COLLECTIVE_PHASES))

#: Of each rank its newest attempt's own steps; ``data`` is the wait for data, as a phase.
_STEPS_OF_RANKS = """
WITH newest AS (SELECT rank, max(attempt) AS attempt FROM steps WHERE child IS NULL GROUP BY rank),
own AS (SELECT steps.* FROM steps JOIN newest USING (rank, attempt) WHERE child IS NULL)"""

_STRAGGLERS = f"""{_STEPS_OF_RANKS},
ranks AS (
    SELECT rank, count(*) AS steps, median(duration_ns) AS step_ns, median(own_ns) AS own_ns FROM own GROUP BY rank
),
others AS (
    SELECT a.rank, median(b.own_ns) AS own_ns FROM ranks AS a JOIN ranks AS b ON a.rank <> b.rank GROUP BY a.rank
),
slowest AS (
    SELECT rank, count(*) AS steps
    FROM (SELECT arg_max(rank, own_ns) AS rank FROM own GROUP BY step HAVING count(*) > 1)
    GROUP BY rank
),
timed AS (
    SELECT rank, entry.key AS phase, median(entry.value) AS phase_ns
    FROM (
        SELECT rank, unnest(map_entries(phases)) AS entry FROM own
        UNION ALL
        SELECT rank, {{key: 'data', value: data_ns}} FROM own WHERE data_ns IS NOT NULL
    )
    WHERE entry.key NOT IN ({_WAITING})
    GROUP BY rank, phase
),
usual AS (SELECT phase, median(phase_ns) AS phase_ns FROM timed GROUP BY phase),
longest AS (
    SELECT rank, arg_max(phase, timed.phase_ns - usual.phase_ns) AS phase
    FROM timed JOIN usual USING (phase) GROUP BY rank
)
SELECT
    ranks.rank,
    ranks.steps,
    round(ranks.step_ns / 1e6, 3) AS step_median_ms,
    round(ranks.own_ns / 1e6, 3) AS own_median_ms,
    round(ranks.own_ns / nullif(others.own_ns, 0), 3) AS times_the_others,
    coalesce(slowest.steps, 0) AS steps_as_slowest,
    longest.phase AS longest_phase
FROM ranks LEFT JOIN others USING (rank) LEFT JOIN slowest USING (rank) LEFT JOIN longest USING (rank)
ORDER BY ranks.own_ns DESC, ranks.rank
"""  # noqa: S608 - of our own names

_STEPS = """
SELECT
    step,
    count(DISTINCT rank) AS ranks,
    round(median(duration_ns) / 1e6, 3) AS median_ms,
    round(max(duration_ns) / 1e6, 3) AS longest_ms,
    round(max(own_ns) / 1e6, 3) AS longest_own_ms,
    arg_max(rank, own_ns) AS slowest_rank,
    sum(samples) AS samples,
    sum(tokens) AS tokens
FROM steps
WHERE child IS NULL AND NOT superseded
GROUP BY step
ORDER BY step
"""

#: The SQL of each question by its name. ``stragglers``: the ranks, the one that works longest on a step first; its own
#: work is a step without the phases in which ranks wait for each other. ``steps``: each step over the ranks.
READY_MADE = {"stragglers": _STRAGGLERS, "steps": _STEPS}
