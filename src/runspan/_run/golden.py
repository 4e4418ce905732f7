"""Compares a run that has just succeeded with its golden trace."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import TraceFormatError
from runspan.semconv import Attr
from runspan.tracefile._compare import incomparabilities
from runspan.tracefile._golden import EQUIVALENT_FROM, GoldenScore, SpanSequence, SpanTimeoutError, score_spans
from runspan.tracefile._state import read_head

if TYPE_CHECKING:
    from pathlib import Path

    from runspan._run.session import Session

__all__ = ["record_golden_score"]

_SIGNAL = "golden"
#: What reading both traces may take of the end of a run; beyond it there is no score.
_READING_NS = 1_000_000_000


def record_golden_score(session: Session) -> None:
    """Compare the run's spans with the golden trace's; the score becomes attributes of ``run`` and a metric.

    Rank 0's own trace is compared, which alone has the ``run`` span; captured steps have traces of their own. Never
    raises: a golden trace that is missing, broken, of something else or too long is one warning, and is counted.
    """
    spec = session.spec
    golden = spec.config.golden_trace_path
    is_main = spec.parent is None and spec.context.rank == 0 and not session.ending.forked
    if golden is None or not is_main or session.otel.spans is None:
        return
    try:
        score = _score(session, golden)
    except _NoScoreError as error:
        session.notices.lose(_SIGNAL, error.reason, 1)
        session.notices.warn_once(_SIGNAL, f"not compared with the golden trace: {error}")
        return
    except Exception as error:  # noqa: BLE001 - a comparison must not cost the end of the run
        session.notices.lose(_SIGNAL, type(error).__name__, 1)
        session.notices.warn_once(_SIGNAL, f"not compared with the golden trace {golden}: {error!r}")
        return
    parts = {f"{Attr.GOLDEN_PREFIX}{name}": value for name, value in msgspec.structs.asdict(score).items()}
    session.otel.set_run_attributes({**parts, f"{Attr.GOLDEN_PREFIX}equivalent": score.is_equivalent})
    session.state.golden_score = score.score
    if not score.is_equivalent:
        session.notices.warn_once(
            _SIGNAL,
            f"differs from the golden trace {golden}: score {score.score:.3f}, equivalent from {EQUIVALENT_FROM}",
        )


class _NoScoreError(Exception):
    """There is nothing to compare; ``reason`` is what it is counted as."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


def _score(session: Session, golden: Path) -> GoldenScore:
    own = session.writer.path
    if own is None:
        raise _NoScoreError("no_file", "the run has no trace file of its own")
    if not golden.exists():
        raise _NoScoreError("missing", f"there is no {golden}: make it with `runspan trace promote RUN --to PATH`")
    deadline_ns = time.monotonic_ns() + _READING_NS
    try:
        reasons = incomparabilities(read_head(golden), session.meta)
        if reasons:
            raise _NoScoreError("not_comparable", f"{golden}: {'; '.join(reasons)}")
        expected = SpanSequence.read(golden, deadline_ns)
        elapsed_ns = session.clock.monotonic_ns() - session.start.monotonic_ns
        found = SpanSequence.read(own, deadline_ns, open_until_ns=elapsed_ns)
    except TraceFormatError as error:
        raise _NoScoreError("unreadable", str(error)) from error
    except SpanTimeoutError as error:
        raise _NoScoreError("timeout", str(error)) from error
    return score_spans(expected, found)
