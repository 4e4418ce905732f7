from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags

from runspan._otel_env import SpanLimitSettings
from runspan.telemetry._ledger import Ledger, Tally
from runspan.telemetry.exporter import TRACES, SpanBudget, SpanExportProcessor

if TYPE_CHECKING:
    from types import FrameType


def _span(name: str = "user", *, trace_id: int = 1, sampled: bool = True, pending: bool = False) -> ReadableSpan:
    context = SpanContext(trace_id, 5, is_remote=False, trace_flags=TraceFlags(int(sampled)))
    attributes = {"runspan.pending": True} if pending else {}
    return ReadableSpan(name, context=context, attributes=attributes, resource=Resource({}), start_time=1, end_time=2)


def _processor(budget: SpanBudget, ledger: Ledger, queue_size: int = 100) -> SpanExportProcessor:
    return SpanExportProcessor(budget, SpanLimitSettings(), queue_size, ledger)


def _exported(processor: SpanExportProcessor) -> int:
    count = 0
    while (parcel := processor.refill(draining=False)) is not None:
        count += parcel.count
    return count


@pytest.mark.parametrize(("limit", "world_size"), [(1500, 1), (1500, 4), (1500, 16), (100, 7), (64, 32)])
def test_the_shares_of_all_ranks_make_the_limit(limit: int, world_size: int) -> None:
    """Ranks other than 0 have limit // (2 · world size) spans each, and rank 0 the rest."""
    shares = [SpanBudget(limit, rank, world_size).share for rank in range(world_size)]
    assert sum(shares) == limit
    assert all(share == limit // (2 * world_size) for share in shares[1:])


def test_every_rank_may_show_itself() -> None:
    """With more ranks than spans, rank 0 still exports run and rank, and each other rank its own."""
    assert SpanBudget(10, 0, 1000).share == 2
    assert SpanBudget(10, 999, 1000).share == 1
    assert SpanBudget(10, 999, 1000).admit(_span("rank"))


def test_which_spans_fit_depends_on_no_timing() -> None:
    """Case 51: whether reserved spans and the frame come before or behind them, the same ordinary spans fit."""
    others = [_span(name) for name in ("run", "rank", "epoch", "epoch", "alert")]
    early, late = SpanBudget(40), SpanBudget(40)
    assert all(early.admit(span) for span in others)
    admitted = [[budget.admit(_span()) for _ in range(50)] for budget in (early, late)]
    assert all(late.admit(span) for span in others)
    assert admitted[0] == admitted[1]
    assert sum(admitted[0]) == 30


def test_ordinary_spans_leave_room_for_the_reserved() -> None:
    """Case 51: spans go out until three quarters are used; epochs, alerts and at last run and rank have the rest."""
    budget = SpanBudget(100)
    assert sum(budget.admit(_span()) for _ in range(1000)) == 75
    assert sum(budget.admit(_span("epoch")) for _ in range(1000)) == 23
    assert not budget.admit(_span("alert"))
    assert [budget.admit(_span(name)) for name in ("rank", "run", "run")] == [True, True, False]


def test_each_trace_has_a_budget_of_its_own() -> None:
    """A captured step's trace is bounded for itself, and keeps room for its root, which ends last."""
    budget = SpanBudget(8)
    assert sum(budget.admit(_span(trace_id=1)) for _ in range(20)) == 6
    assert sum(budget.admit(_span("forward", trace_id=2)) for _ in range(20)) == 6
    assert budget.admit(_span("step", trace_id=2))


def test_what_the_budget_refuses_is_counted() -> None:
    """Spans beyond the budget are counted under their reason, also those turned away before the queue."""
    ledger = Ledger()
    processor = _processor(SpanBudget(100), ledger, queue_size=10_000)
    for _ in range(200):
        processor.on_end(_span())
    assert _exported(processor) == 75
    for _ in range(50):
        processor.on_end(_span())
    assert processor.refill(draining=False) is None
    assert ledger.dropped == {(TRACES, "budget"): 175}


def test_a_full_queue_takes_the_reserved_still() -> None:
    """What does not fit is counted; run and rank have a place of their own and go first."""
    ledger = Ledger()
    processor = _processor(SpanBudget(10_000), ledger, queue_size=10)
    for _ in range(15):
        processor.on_end(_span())
    processor.on_end(_span("run"))
    assert ledger.dropped == {(TRACES, "queue_full"): 5}
    parcel = processor.refill(draining=False)
    assert parcel is not None
    assert parcel.request().resource_spans[0].scope_spans[0].spans[0].name == "run"
    assert parcel.count == 11


def test_pending_spans_do_not_count() -> None:
    """A pending span is neither bounded by the budget nor counted as exported or lost."""
    ledger = Ledger()
    processor = _processor(SpanBudget(2), ledger)
    for _ in range(5):
        processor.offer(_span("epoch (started)", pending=True))
    parcel = processor.refill(draining=False)
    assert parcel is not None
    assert parcel.count == 0
    assert len(parcel.request().resource_spans[0].scope_spans[0].spans) == 5
    processor.offer(_span("epoch (started)", pending=True))
    assert processor.sweep() == 0
    assert ledger.dropped == {}


def test_unsampled_spans_are_no_part_of_the_export() -> None:
    """A span recorded for the file alone is neither sent nor counted as lost."""
    ledger = Ledger()
    processor = _processor(SpanBudget(10), ledger)
    processor.on_end(_span(sampled=False))
    assert processor.refill(draining=False) is None
    assert ledger.dropped == {}


def test_spans_after_the_end_are_counted() -> None:
    """After the queues were swept nothing is taken any more."""
    ledger = Ledger()
    processor = _processor(SpanBudget(10), ledger)
    processor.on_end(_span())
    assert processor.sweep() == 1
    processor.on_end(_span())
    assert ledger.dropped == {(TRACES, "finished"): 1}


def test_a_forked_child_takes_and_counts_nothing() -> None:
    """In a child the processor is silent: the parent ships its spans."""
    ledger = Ledger()
    processor = _processor(SpanBudget(10), ledger)
    processor.on_end(_span())
    processor.reinit_in_child()
    processor.on_end(_span())
    assert processor.refill(draining=False) is None
    assert ledger.dropped == {}


def test_a_flush_never_waits() -> None:
    """A host program that flushes its providers is not held up."""
    woken: list[bool] = []
    processor = _processor(SpanBudget(10), Ledger())
    processor.wake_with(lambda: woken.append(True))
    assert processor.force_flush()
    assert woken == [True]


def test_the_worker_is_woken_when_many_spans_wait() -> None:
    """A burst does not wait for the period."""
    woken: list[bool] = []
    processor = _processor(SpanBudget(10_000), Ledger(), queue_size=10_000)
    processor.wake_with(lambda: woken.append(True))
    for _ in range(511):
        processor.on_end(_span())
    assert not woken
    processor.on_end(_span())
    assert woken


def test_a_tally_loses_nothing_between_threads() -> None:
    """Increments of several threads are all counted."""
    tally = Tally()

    def count() -> None:
        for _ in range(20_000):
            tally.add()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.add(5)
    assert tally.value == 80_005


def test_a_signal_handler_may_end_spans_while_one_ends() -> None:
    """Nothing waits and nothing is lost when a handler interrupts the queueing at any point."""
    ledger = Ledger()
    processor = _processor(SpanBudget(10**9), ledger, queue_size=1000)
    from_handler = 0

    def handler(_number: int, _frame: FrameType | None) -> None:
        nonlocal from_handler
        from_handler += 1
        processor.on_end(_span())

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        own = 0
        while from_handler < 50:
            processor.on_end(_span())
            own += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert _exported(processor) + ledger.dropped.get((TRACES, "queue_full"), 0) == own + from_handler
