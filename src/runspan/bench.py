"""Benchmarks: what ``.benchmarks/bounds.toml`` declares is run as a Run, and leaves a record that a gate can check.

Whatever ends a run leaves its records: they are written when the run's root span ends, SIGTERM and an exception
included. For a process that is killed outright a gate run writes the record of a failed run when it starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Literal

import msgspec

from runspan._bench.execution import Execution
from runspan._bench.recorder import Recorder, Subject
from runspan._bench.repository import declared_benchmarks, find_top, gate_facts, judging_bounds
from runspan._run.failures import describe_error
from runspan._run.progress import step_progress
from runspan.config import TracingConfig
from runspan.errors import ConfigError, GateError
from runspan.gate.baseline import BOUNDS_PATH, Bound
from runspan.gate.frame import Frame, VerdictKind
from runspan.gate.hardware_checks import look_before
from runspan.gate.hardware_probe import HardwareProbe
from runspan.gate.measuring import failed, judge
from runspan.gate.storing import record_folder
from runspan.records import RunStatus
from runspan.redaction import Redactor
from runspan.run import start_run

if TYPE_CHECKING:
    from runspan._bench.repository import GateFacts
    from runspan.gate.baseline import Baseline, BaselineEntry, Benchmark
    from runspan.gate.measuring import Report
    from runspan.run import Run
    from runspan.storage.base import ExperimentStorage

__all__ = ["BenchOutcome", "BenchRequest", "BenchResult", "UnfitMachineError", "find_top", "run_benchmark"]


class UnfitMachineError(GateError):
    """The machine is in a state in which a gate run would measure nothing."""


class BenchOutcome(StrEnum):
    """What a benchmark run came to; only PASS passes.

    ``NO_VERDICT``: it crashed, was cancelled, only informs, or its record could not be written. ``NO_BASELINE``: no
    bounds for the benchmark at HEAD. ``NOT_COMPARABLE``: bounds, but none for this hardware.
    """

    PASS = "PASS"  # noqa: S105 - an outcome, no password
    FAIL = "FAIL"
    NO_VERDICT = "NO_VERDICT"
    NO_BASELINE = "NO_BASELINE"
    NOT_COMPARABLE = "NOT_COMPARABLE"


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which benchmark is to run, and how.

    Attributes:
        benchmark_id: its id in ``bounds.toml``.
        params: parameters, on top of those that the entry for this hardware pins.
        url: the server to measure; empty: none.
        model: the model to measure; empty: the hardware's default.
        serve_overrides: recipe keys, on top of those that the entry pins.
        gate: whether it is a gate run.
        allow_other_hardware: whether a gate run may pass without bounds for this hardware.
        source: who asks.
    """

    benchmark_id: str
    params: Mapping[str, str] = {}
    url: str = ""
    model: str = ""
    serve_overrides: Mapping[str, str] = {}
    gate: bool = False
    allow_other_hardware: bool = False
    source: Literal["cli", "api"] = "api"


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark run came to, in this process.

    Attributes:
        run_id: the Run.
        outcome: in one word.
        reason: why.
        frame: the last frame; None on ranks other than 0, which write no record.
        run_record: where the run's record is.
        gate_record: where the gate's record is.
    """

    run_id: str
    outcome: BenchOutcome
    reason: str
    frame: Frame | None = None
    run_record: Path | None = None
    gate_record: Path | None = None


def run_benchmark(
    request: BenchRequest,
    top: Path,
    *,
    config: TracingConfig | None = None,
    storage: ExperimentStorage | None = None,
    probe: HardwareProbe | None = None,
    show_progress: bool = False,
) -> BenchResult:
    """Run a benchmark: warm-ups, then repeats, each a span of the Run; then judge and record it.

    Args:
        request: which, and how.
        top: the repository's top, which has ``.benchmarks``.
        config: the Run's; None: ``TracingConfig.from_env()``.
        storage: the Run's; None: the default.
        probe: reads the machine; None: this one.
        show_progress: whether a terminal's stderr shows a bar.

    Raises:
        GateError: there is no such benchmark, or the configuration cannot be used. The Run has not started.
        GitError: a gate run, and git does not tell what it would measure. The Run has not started.
        UnfitMachineError: a gate run, and the machine cannot be measured now. The Run has not started.
        ConfigError: tracing is off: the records are written when the root span ends.
    """
    declared = declared_benchmarks(top)
    benchmark = _declared(request.benchmark_id, declared, BOUNDS_PATH)
    record_folder(top, request.benchmark_id)  # an id that is no folder's name is refused before anything runs
    gate = gate_facts(top, request.benchmark_id) if request.gate else None
    if gate is not None:  # what is measured is what is committed, the declaration included
        declared = gate.baseline
        benchmark = _declared(request.benchmark_id, declared, f"HEAD:{BOUNDS_PATH}")
    probe = probe or HardwareProbe(visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"))
    hardware, before = probe.fingerprint(), probe.state()
    check = look_before(before, "speed")
    if gate is not None and check.decision == "refuse":
        raise UnfitMachineError(f"not measured: {'; '.join(check.concerns)}")
    key = hardware.gate_key
    subject = _subject(request, benchmark, declared, key, top)
    bounds = judging_bounds(top) if gate is None else gate.baseline
    entry = bounds.entry(key, request.model or bounds.default_models.get(key, ""), request.benchmark_id)
    recorder = Recorder(subject, gate, hardware, probe, before)
    config = TracingConfig.from_env() if config is None else config
    if not config.tracing_enabled:
        raise ConfigError("tracing is off, and a benchmark's records are written when its root span ends: turn it on")
    run = start_run(
        f"bench-{request.benchmark_id}",
        name=subject.benchmark_name,
        params=subject.params,
        entrypoint=benchmark.callable or " ".join(benchmark.command or ()),
        config=config,
        storage=storage,
    )
    arguments = {**subject.params, **_given(url=request.url, model=request.model)}
    execution = Execution(benchmark, top, arguments, run)
    recorder.attach(run, execution.stop)
    _measure(run, benchmark, execution, recorder, _bounds_of_a_run(entry), show_progress=show_progress)
    return _result(run, recorder, gate, _without_bounds(request, bounds, key, entry))


def _declared(benchmark_id: str, declared: Baseline, name: str) -> Benchmark:
    benchmark = declared.benchmarks.get(benchmark_id)
    if benchmark is None:
        known = ", ".join(sorted(declared.benchmarks)) or "none"
        raise GateError(f"benchmark {benchmark_id!r} is not in {name}: it declares {known}")
    return benchmark


def _measure(
    run: Run,
    benchmark: Benchmark,
    execution: Execution,
    recorder: Recorder,
    bounds: Mapping[str, Bound],
    *,
    show_progress: bool,
) -> None:
    """Run the warm-ups and repeats inside the Run, which takes down whatever ends them."""
    reports: list[Report] = []
    total = benchmark.warmups + benchmark.repeats
    try:
        with run, step_progress(total, shown=show_progress) as advance:
            try:
                for number in range(total):
                    is_warmup = number < benchmark.warmups
                    with run.span("warmup" if is_warmup else "repeat", number=number):
                        report = execution.once()
                    if not is_warmup:
                        run.log_metrics(report.metrics, len(reports))
                        reports.append(report)
                    advance()
                recorder.conclude(run, judge(reports, bounds))
            except BaseException as error:
                recorder.conclude(run, failed(describe_error(error, Redactor(run.tracing_config.redact))))
                raise
    except BaseException:  # noqa: BLE001, S110 - a failed or cancelled benchmark is a result; the Run has recorded it
        pass


def _subject(request: BenchRequest, benchmark: Benchmark, declared: Baseline, hardware_key: str, top: Path) -> Subject:
    """Put the request and what the entry for this hardware pins together."""
    model = request.model or declared.default_models.get(hardware_key, "")
    entry = declared.entry(hardware_key, model, request.benchmark_id)
    return Subject(
        top=top,
        benchmark_id=request.benchmark_id,
        benchmark_name=benchmark.name or request.benchmark_id,
        target_url=request.url,
        target_model=request.model,
        params={**({} if entry is None else entry.params), **request.params},
        serve_overrides={**({} if entry is None else entry.serve_overrides), **request.serve_overrides},
        serve_env={} if entry is None else entry.serve_env,
        source=request.source,
    )


def _bounds_of_a_run(entry: BaselineEntry | None) -> dict[str, Bound]:
    """Return what one run is held to; where an entry puts shards together, its bounds are those of the whole."""
    if entry is None:
        return {}
    zero = {metric: Bound(min=0.0, max=0.0) for metric in entry.zero}
    return zero if entry.aggregate else {**entry.bounds, **zero}


def _given(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _without_bounds(
    request: BenchRequest, bounds: Baseline, hardware_key: str, entry: BaselineEntry | None
) -> tuple[BenchOutcome, str] | None:
    """Say why a gate run has nothing to be judged by; None where it has, or need not."""
    if not request.gate:
        return None
    if request.benchmark_id not in bounds.benchmark_ids:
        return BenchOutcome.NO_BASELINE, f"HEAD:{BOUNDS_PATH} has no entry for {request.benchmark_id}"
    if entry is None:
        if request.allow_other_hardware:
            return None
        return BenchOutcome.NOT_COMPARABLE, f"HEAD:{BOUNDS_PATH} has no entry for hardware {hardware_key}"
    if entry.status == "unmeasured" or not entry.bounds:
        return BenchOutcome.FAIL, f"the entry for {hardware_key} at HEAD is unmeasured, or has no bounds"
    return None


def _result(
    run: Run, recorder: Recorder, gate: GateFacts | None, unbounded: tuple[BenchOutcome, str] | None
) -> BenchResult:
    outcome, reason = _outcome(run, recorder.frame, gate, unbounded)
    return BenchResult(
        run_id=run.id,
        outcome=outcome,
        reason=reason,
        frame=recorder.frame,
        run_record=recorder.run_record,
        gate_record=recorder.gate_record,
    )


def _outcome(
    run: Run, frame: Frame | None, gate: GateFacts | None, unbounded: tuple[BenchOutcome, str] | None
) -> tuple[BenchOutcome, str]:
    error = run.span_processor.end_error
    if error is not None:
        return BenchOutcome.NO_VERDICT, f"the record could not be written: {error}"
    if frame is None or frame.verdict is None:
        if run.rank_context.rank != 0 and run.status() is RunStatus.SUCCESS:
            return BenchOutcome.PASS, f"rank {run.rank_context.rank} is through; rank 0 judges"
        return BenchOutcome.NO_VERDICT, f"the run ended as {run.status()}, without a record"
    verdict = frame.verdict
    if run.status() is not RunStatus.SUCCESS or verdict.kind is VerdictKind.INFO:
        return BenchOutcome.NO_VERDICT, verdict.reason
    answer = BenchOutcome.PASS, verdict.reason
    if verdict.kind is VerdictKind.FAIL:
        answer = BenchOutcome.FAIL, verdict.reason
    elif gate is not None and gate.dirty_paths:
        answer = BenchOutcome.FAIL, f"not committed: {', '.join(gate.dirty_paths)}"
    elif unbounded is not None:
        answer = unbounded
    return answer
