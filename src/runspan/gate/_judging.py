"""The judgement of one benchmark's records by the bounds and the rules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from runspan.gate._results import GateOutcome, GateResult, MetricResult
from runspan.gate.frame import FrameStatus
from runspan.gate.shard import (
    Part,
    aggregate_metrics,
    incomplete_reason,
    missing_metrics,
    newest_whole,
    shard_problems,
)
from runspan.gate.signing import signature_problem
from runspan.gate.standing import Standing, StandingKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runspan.gate._folder import Found, FoundRecord
    from runspan.gate.baseline import Baseline, BaselineEntry
    from runspan.gate.record import GateRecord
    from runspan.gate.standing import Standings

__all__ = ["Judge", "check_record"]

_MAX_INVALIDATED = 3


def check_record(record: GateRecord, baseline: Baseline) -> tuple[str, ...]:
    """Say what is wrong with a record by the entry of its hardware and model.

    The entry must be there, measured, and have bounds, each of which holds; its ``zero`` metrics must be 0; the run's
    recipe overrides must be the pinned ones, no more and no fewer, and each pinned parameter must have its value.
    """
    key, model = record.hardware.gate_key, _model(record, baseline)
    entry = baseline.entry(key, model, record.benchmark_id)
    if entry is None:
        return (f"no entry for {record.benchmark_id!r} on hardware {key!r} with model {model!r}",)
    problems = [*_entry_problems(entry), *_pin_problems(record, entry), *_zero_problems(record.metrics, entry)]
    return (*problems, *_bound_problems(_measure(record.metrics, entry)))


class Judge:
    """Judges benchmarks.

    Args:
        standings: tells which records stand.
        baseline: the entries at HEAD.
        keys: the public keys of the signers, by their ids; none: no signature is needed.
        added: paths of the records that the change adds.
        allow_other_hardware: whether a record of a machine without an entry is judged by all others' entries.
    """

    def __init__(
        self,
        standings: Standings,
        baseline: Baseline,
        keys: dict[str, bytes],
        added: frozenset[str],
        *,
        allow_other_hardware: bool,
    ) -> None:
        self._standings = standings
        self._baseline = baseline
        self._keys = keys
        self._added = added
        self._allow_other_hardware = allow_other_hardware

    def judge(self, benchmark_id: str, found: Found) -> GateResult:
        """Judge a benchmark by what its folder holds."""
        if benchmark_id not in self._baseline.benchmark_ids:
            return GateResult(
                benchmark_id=benchmark_id,
                outcome=GateOutcome.NO_BASELINE,
                problems=("it has no entry in bounds.toml", *found.problems),
            )
        result = self._newest(benchmark_id, found)
        disagreements, is_unknown = self._disagreements(found)
        outcome = result.outcome
        if outcome is GateOutcome.PASS and (found.problems or disagreements):
            outcome = GateOutcome.UNKNOWN if is_unknown and not found.problems else GateOutcome.FAIL
        problems = dict.fromkeys([*result.problems, *found.problems, *disagreements])
        return msgspec.structs.replace(result, outcome=outcome, problems=tuple(problems))

    def _newest(self, benchmark_id: str, found: Found) -> GateResult:
        """Judge the newest record that stands; where a newer one may stand or not, nothing is known."""
        invalidated: list[str] = []
        for position, candidate in enumerate(found.records):
            record = candidate.record
            if self._is_other_model(record):
                continue
            standing = self._standings.of(record)
            if standing.kind is StandingKind.UNKNOWN:
                return _result(candidate, GateOutcome.UNKNOWN, [f"{candidate.path}: {standing.reason}"])
            if standing.kind is StandingKind.INVALIDATED:
                invalidated.append(f"{candidate.path} does not stand: {standing.reason}")
                continue
            return self._judge_standing(candidate, standing, found.records[position:])
        reason = "no record stands" if invalidated else "there is no record"
        return GateResult(
            benchmark_id=benchmark_id,
            outcome=GateOutcome.MISSING,
            problems=(f"{reason}: run the benchmark at HEAD and commit its record", *invalidated[:_MAX_INVALIDATED]),
        )

    def _judge_standing(self, candidate: FoundRecord, standing: Standing, rest: Sequence[FoundRecord]) -> GateResult:
        record = candidate.record
        warnings = [f"{candidate.path}: {standing.warning}"] if standing.warning else []
        if record.frame_status_failed():
            reason = record.verdict_reason or record.summary
            return _result(candidate, GateOutcome.FAIL, [f"{candidate.path}: the run failed: {reason}"], warnings)
        entry = self._baseline.entry(record.hardware.gate_key, _model(record, self._baseline), record.benchmark_id)
        entries = [entry] if entry is not None else []
        if entry is None:
            key = record.hardware.gate_key
            others = self._entries_elsewhere(record.benchmark_id)
            if not self._allow_other_hardware or not others:
                problem = f"{candidate.path} was measured on {key!r}, for which there is no entry"
                return _result(candidate, GateOutcome.NOT_COMPARABLE, [problem], warnings)
            entries = list(others.values())
            warnings.append(f"--allow-other-hardware: measured on {key!r}, judged by the bounds of {', '.join(others)}")
        judged = [self._judge_by(entry, candidate, rest) for entry in entries]
        worst = next((result for result in judged if result.outcome is not GateOutcome.PASS), judged[0])
        return msgspec.structs.replace(worst, warnings=(*warnings, *worst.warnings))

    def _judge_by(self, entry: BaselineEntry, candidate: FoundRecord, rest: Sequence[FoundRecord]) -> GateResult:
        if entry.aggregate:
            return self._judge_group(entry, candidate, rest)
        record = candidate.record
        metrics = _measure(record.metrics, entry)
        problems = [*self._own_problems(candidate), *_entry_problems(entry), *_pin_problems(record, entry)]
        if record.verdict != "PASS":
            problems.append(f"the verdict is {record.verdict or 'missing'}: {record.verdict_reason}")
        if "shard.index" in record.metrics or "shard.count" in record.metrics:
            problems.append("it measured a shard, and the entry has no `aggregate` to put a whole together by")
        problems += [*_zero_problems(record.metrics, entry), *_bound_problems(metrics)]
        outcome = GateOutcome.FAIL if problems else GateOutcome.PASS
        return _result(candidate, outcome, [f"{candidate.path}: {problem}" for problem in problems], metrics=metrics)

    def _judge_group(self, entry: BaselineEntry, newest: FoundRecord, rest: Sequence[FoundRecord]) -> GateResult:
        """Judge the newest complete group of shards that stands."""
        by_name: dict[str, FoundRecord] = {}
        parts: list[Part] = []
        warnings: list[str] = []
        for candidate in rest:
            record, shard = candidate.record, candidate.record.shard()
            same_machine = record.hardware.gate_key == newest.record.hardware.gate_key
            if shard is None or not same_machine or self._is_other_model(record):
                continue
            standing = self._standings.of(record)
            if standing.kind is StandingKind.UNKNOWN:
                return _result(candidate, GateOutcome.UNKNOWN, [f"{candidate.path}: {standing.reason}"])
            if standing.kind is StandingKind.STANDS:
                warnings += [f"{candidate.path}: {standing.warning}"] if standing.warning else []
                by_name[candidate.path] = candidate
                parts.append(Part(candidate.path, record, standing.full_sha or record.git_sha, *shard))
        whole = newest_whole(parts)
        if whole is None:
            return _result(newest, GateOutcome.MISSING, [incomplete_reason(parts)], warnings)
        if isinstance(whole, Part):
            return _result(
                by_name[whole.name], GateOutcome.FAIL, [f"{whole.name}: shard {whole.index} failed"], warnings
            )
        if (failed := next((part for part in whole if part.record.frame_status_failed()), None)) is not None:
            problem = f"{failed.name}: shard {failed.index} failed: {failed.record.verdict_reason}"
            return _result(by_name[failed.name], GateOutcome.FAIL, [problem], warnings)
        if absent := missing_metrics(whole, entry):
            return _result(by_name[whole[0].name], GateOutcome.MISSING, absent, warnings)
        problems = list(_entry_problems(entry))
        for part in whole:
            problems += shard_problems(part, entry)
            own = [*self._own_problems(by_name[part.name]), *_pin_problems(part.record, entry)]
            problems += [f"{part.name}: {problem}" for problem in own]
        metrics = _measure(aggregate_metrics(whole, entry), entry)
        problems += _bound_problems(metrics)
        outcome = GateOutcome.FAIL if problems else GateOutcome.PASS
        judged = next(candidate for path, candidate in by_name.items() if path in {part.name for part in whole})
        return _result(judged, outcome, problems, warnings, metrics)

    def _own_problems(self, candidate: FoundRecord) -> list[str]:
        """Say what is wrong with a record whatever it measured."""
        problems = []
        if candidate.record.frame_status is not FrameStatus.COMPLETED:
            problems.append(f"the run's status is {candidate.record.frame_status}: it did not complete")
        if candidate.record.dirty_paths:
            problems.append(f"measured with uncommitted changes: {', '.join(candidate.record.dirty_paths)}")
        if self._keys and (problem := signature_problem(candidate.file, self._keys)) is not None:
            problems.append(problem)
        return problems

    def _disagreements(self, found: Found) -> tuple[list[str], bool]:
        """Name the added records that do not stand, and tell whether that is unknown of all of them."""
        problems, kinds = [], set()
        for candidate in found.records:
            if candidate.path in self._added:
                standing = self._standings.of(candidate.record)
                if standing.kind is not StandingKind.STANDS:
                    kinds.add(standing.kind)
                    problems.append(
                        f"{candidate.path}, which this change adds, does not stand, so leave it out: {standing.reason}"
                    )
        return problems, kinds == {StandingKind.UNKNOWN}

    def _is_other_model(self, record: GateRecord) -> bool:
        default = self._baseline.default_models.get(record.hardware.gate_key)
        return default is not None and record.target_model not in {"", default}

    def _entries_elsewhere(self, benchmark_id: str) -> dict[str, BaselineEntry]:
        """Return a benchmark's entries for the default model of each hardware that has one, by its key."""
        entries = {}
        for key, default in self._baseline.default_models.items():
            entry = self._baseline.entry(key, default, benchmark_id)
            if entry is not None:
                entries[key] = entry
        return entries


def _result(
    candidate: FoundRecord,
    outcome: GateOutcome,
    problems: Sequence[str],
    warnings: Sequence[str] = (),
    metrics: tuple[MetricResult, ...] = (),
) -> GateResult:
    record = candidate.record
    return GateResult(
        benchmark_id=record.benchmark_id,
        outcome=outcome,
        problems=tuple(problems),
        warnings=tuple(warnings),
        record=candidate.path,
        git_sha=record.git_sha,
        hardware_key=record.hardware.gate_key,
        metrics=metrics,
    )


def _model(record: GateRecord, baseline: Baseline) -> str:
    """Return the model that a record is filed under: where it names none, its hardware's default."""
    return record.target_model or baseline.default_models.get(record.hardware.gate_key, "")


def _entry_problems(entry: BaselineEntry) -> list[str]:
    problems = []
    if entry.status != "measured":
        problems.append("the entry's status is unmeasured: an entry without measured bounds passes nothing")
    if not entry.bounds:
        problems.append("the entry has no bounds")
    return problems


def _pin_problems(record: GateRecord, entry: BaselineEntry) -> list[str]:
    problems = []
    if record.serve_overrides != entry.serve_overrides:
        problems.append(
            f"serve_overrides are {dict(record.serve_overrides)}, and the entry pins {dict(entry.serve_overrides)}"
        )
    for name, pinned in entry.params.items():
        given = record.params.get(name)
        if given != pinned:
            problems.append(f"parameter {name!r} is {'missing' if given is None else repr(given)}, pinned: {pinned!r}")
    return problems


def _zero_problems(metrics: Mapping[str, float], entry: BaselineEntry) -> list[str]:
    values = {metric: metrics.get(metric) for metric in entry.zero}
    return [
        f"{metric} is {'missing' if value is None else f'{value:g}'}, and must be 0"
        for metric, value in values.items()
        if value != 0
    ]


def _measure(metrics: Mapping[str, float], entry: BaselineEntry) -> tuple[MetricResult, ...]:
    results = []
    for metric, bound in sorted(entry.bounds.items()):
        value = metrics.get(metric)
        value = float(value) if value is not None and math.isfinite(value) else None
        holds = value is not None and bound.holds(value)
        results.append(MetricResult(metric=metric, value=value, bound=bound, holds=holds))
    return tuple(results)


def _bound_problems(results: Sequence[MetricResult]) -> list[str]:
    problems = []
    for result in results:
        if result.value is None:
            problems.append(f"{result.metric} is missing or not finite, expected {result.expected}")
        elif not result.holds:
            # The difference itself, not a share of the bound, which may be zero.
            problems.append(f"{result.metric} is {result.value:g}, expected {result.expected}: {_miss(result)}")
    return problems


def _miss(result: MetricResult) -> str:
    value, bound = float(result.value or 0), result.bound
    if bound.max is not None and value > bound.max:
        return f"{value - bound.max:g} above"
    return f"{float(bound.min or 0) - value:g} below"
