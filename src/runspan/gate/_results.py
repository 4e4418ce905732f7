"""What a check found: one outcome a benchmark, and the exit code of them all."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from runspan.gate.baseline import Bound  # noqa: TC001 - msgspec reads the annotations

__all__ = ["NO_VERDICT", "GateOutcome", "GateReport", "GateResult", "MetricResult"]

#: The exit code of whatever ends without an answer.
NO_VERDICT = 3


class GateOutcome(StrEnum):
    """How the check of one benchmark ended; only PASS passes."""

    PASS = "PASS"  # noqa: S105 - an outcome, no password
    FAIL = "FAIL"
    MISSING = "MISSING"
    UNKNOWN = "UNKNOWN"
    NO_BASELINE = "NO_BASELINE"
    NOT_COMPARABLE = "NOT_COMPARABLE"

    @property
    def exit_code(self) -> int:
        """What a program ends with that has this outcome only."""
        return _EXIT_CODES.get(self, NO_VERDICT)


_EXIT_CODES = {GateOutcome.PASS: 0, GateOutcome.FAIL: 1, GateOutcome.NOT_COMPARABLE: 4}
#: Which exit code several outcomes have together: the first of these that one of them has.
_PRECEDENCE = (1, NO_VERDICT, 4)


class MetricResult(msgspec.Struct, frozen=True, kw_only=True):
    """A bounded metric of the record that was judged.

    Attributes:
        metric: its name.
        value: what was measured; None: nothing, or nothing finite.
        bound: the range it must lie in.
        holds: whether it does.
    """

    metric: str
    value: float | None
    bound: Bound
    holds: bool

    @property
    def expected(self) -> str:
        """The range, in words."""
        bound = self.bound
        if bound.min is not None and bound.min == bound.max:
            return f"exactly {bound.min:g}"
        parts = [f"at least {bound.min:g}" if bound.min is not None else ""]
        parts.append(f"at most {bound.max:g}" if bound.max is not None else "")
        text = " and ".join(part for part in parts if part)
        return f"{text} (noise {bound.noise:g})" if bound.noise else text


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the check of one benchmark ended.

    Attributes:
        benchmark_id: which benchmark.
        outcome: how it ended.
        problems: each reason why it does not pass.
        warnings: what people must be told although it may pass.
        record: the judged record's path below the repository's top; of a group of shards the newest's.
        git_sha: the commit that it measured.
        hardware_key: the machine that it ran on.
        metrics: the bounded metrics.
    """

    benchmark_id: str
    outcome: GateOutcome
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    record: str | None = None
    git_sha: str | None = None
    hardware_key: str | None = None
    metrics: tuple[MetricResult, ...] = ()


class GateReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a check ended.

    Attributes:
        results: one a benchmark, by id.
        head: the full sha that was checked; None: git does not tell.
        merge_base: the newest commit in common with the base.
        bounds_changes: how the bounds and declarations differ from the merge base's.
        rules_changes: how the rules do.
        reason: why there is no result at all.
    """

    results: tuple[GateResult, ...] = ()
    head: str | None = None
    merge_base: str | None = None
    bounds_changes: tuple[str, ...] = ()
    rules_changes: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def exit_code(self) -> int:
        """0: everything passes; 1: a FAIL; 3: no verdict on something, or on nothing; 4: another hardware."""
        codes = {result.outcome.exit_code for result in self.results}
        if self.reason is not None or not self.results:
            codes.add(NO_VERDICT)
        return next((code for code in _PRECEDENCE if code in codes), 0)
