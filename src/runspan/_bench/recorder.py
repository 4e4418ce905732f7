"""What a benchmark's Run leaves behind when its root span ends: a run record, and a gate run's record."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from runspan._output_file import whole_file
from runspan._plain import scrub_text
from runspan._run.gate import export_gate_span, set_gate_values
from runspan._version import __version__
from runspan.errors import RunspanError
from runspan.gate.canonical import render
from runspan.gate.frame import Frame, FrameStatus, LogLine, RunRecord, Table, VerdictKind
from runspan.gate.hardware_checks import report
from runspan.gate.measuring import Result, failed
from runspan.gate.record import GateRecord
from runspan.gate.storing import save_record
from runspan.records import RunStatus
from runspan.semconv import Attr
from runspan.tracefile.layout import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Literal

    from opentelemetry.sdk.trace import ReadableSpan

    from runspan._bench.repository import GateFacts
    from runspan.gate.hardware import Hardware, HardwareStateReport
    from runspan.gate.hardware_probe import HardwareProbe, MachineState
    from runspan.run import Run

__all__ = ["Recorder", "Subject"]

_NS_PER_S = 1_000_000_000


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Attributes:
        top: the repository's top.
        benchmark_id: which benchmark.
        benchmark_name: its name for people.
        target_url: the server that is measured; empty: none.
        target_model: the model that is measured.
        params: what the benchmark is given.
        serve_overrides: recipe keys that are changed for this run.
        serve_env: levers for the server.
        source: who started it.
    """

    top: Path
    benchmark_id: str
    benchmark_name: str
    target_url: str
    target_model: str
    params: Mapping[str, str]
    serve_overrides: Mapping[str, str]
    serve_env: Mapping[str, str]
    source: Literal["cli", "api"]


class Recorder:
    """Waits for the end of a run's root span, and writes then what there is to write, whatever ended it.

    Args:
        subject: what is measured.
        gate: the facts at the start of a gate run; None: it is none, and no gate record is written.
        hardware: the machine.
        probe: reads the machine's state after the run.
        before: its state before.

    Attributes:
        result: what was measured; None until the last repeat is through.
        log: lines for the record, oldest first.
        frame: the last frame; None until the run has ended.
        run_record: where the run's record was written.
        gate_record: where the gate's record was written.
    """

    def __init__(
        self,
        subject: Subject,
        gate: GateFacts | None,
        hardware: Hardware,
        probe: HardwareProbe,
        before: MachineState,
    ) -> None:
        self._subject = subject
        self._gate = gate
        self._hardware = hardware
        self._probe = probe
        self._before = before
        self._began_ns = time.monotonic_ns()
        self.result: Result | None = None
        self.log: list[LogLine] = []
        self.frame: Frame | None = None
        self.run_record: Path | None = None
        self.gate_record: Path | None = None
        self._unfinished: Path | None = None

    def attach(self, run: Run, stop: Callable[[], None]) -> None:
        """Have the run's span processor write the records when its root span ends, on rank 0.

        A gate run's record stands from now on as that of a failed run: SIGKILL leaves no time to write one.

        Args:
            run: the run.
            stop: called first: ends what still runs of the benchmark.
        """
        if run.span_id is not None and run.rank_context.rank == 0:
            if self._gate is not None:
                with suppress(RunspanError):  # whatever the reason, the last write has it too, and tells it
                    self._unfinished = self._unfinished_record(run, self._gate).save(self._subject.top)
            run.span_processor.when_ended(int(run.span_id, 16), lambda span: self._ended(run, span, stop))

    def conclude(self, run: Run, result: Result) -> None:
        """Take the result, and show a gate run's as a span while the run is open."""
        self.result = result
        if self._gate is not None:
            self._export(run, result, self._gate)

    def _export(self, run: Run, result: Result, gate: GateFacts) -> None:
        verdict = result.verdict
        export_gate_span(
            run, self._subject.benchmark_id, verdict=str(verdict.kind), reason=verdict.reason, git_sha=gate.git_sha
        )

    def _ended(self, run: Run, span: ReadableSpan, stop: Callable[[], None]) -> None:
        stop()
        attributes = span.attributes or {}
        status, reason = str(attributes.get(Attr.RUN_STATUS)), attributes.get(Attr.RUN_END_REASON)
        result = self.result
        if status != RunStatus.SUCCESS:
            result = failed(status if reason is None else f"{status}: {reason}")
        elif result is None:
            result = failed("the benchmark ended before it had reported a result")
        if self._gate is not None:
            passed = result.status is FrameStatus.COMPLETED and result.verdict.kind is VerdictKind.PASS
            set_gate_values(run, self._subject.benchmark_id, result.metrics, passed=passed)
        self.frame = self._last_frame(result, self._probe.state())
        try:
            self._write(run, self.frame)
        finally:  # last: the records must not hang on it
            if self._gate is not None and self.result is None:
                self._export(run, result, self._gate)

    def _write(self, run: Run, frame: Frame) -> None:
        record = self._run_record(run, frame)
        try:
            if run.directory is not None:
                self.run_record = _write_new(RunDirectory(run.directory).gate, record)
        finally:  # the gate's record must not hang on the run's
            if self._gate is not None:
                made = self._gate_record(record, self._gate)
                self.gate_record = save_record(made, self._subject.top, instead_of=self._unfinished)

    def _unfinished_record(self, run: Run, gate: GateFacts) -> GateRecord:
        frame = self._last_frame(failed("the run started, and was killed before it ended"), after=None)
        return self._gate_record(self._run_record(run, frame), gate)

    def _last_frame(self, result: Result, after: MachineState | None) -> Frame:
        state = report(self._before, after, "speed")
        return Frame(
            status=result.status,
            phase="done" if result.status is FrameStatus.COMPLETED else "failed",
            progress=1.0,
            summary=result.verdict.reason,
            table=Table(["metric", "value"], [[name, f"{value:g}"] for name, value in sorted(result.metrics.items())]),
            verdict=msgspec.structs.replace(result.verdict, reason=scrub_text(result.verdict.reason)),
            metrics=result.metrics,
            log=[*self.log, *_hardware_log(state)],
            elapsed=(time.monotonic_ns() - self._began_ns) / _NS_PER_S,
            hardware_state=state,
            dataset_fingerprint=result.dataset_fingerprint,
        )

    def _run_record(self, run: Run, frame: Frame) -> RunRecord:
        subject = self._subject
        return RunRecord(
            run_id=scrub_text(run.id),
            benchmark_id=subject.benchmark_id,
            benchmark_name=subject.benchmark_name,
            recorded_at=time.time_ns() // _NS_PER_S,
            target_url=subject.target_url,
            target_model=subject.target_model,
            params=subject.params,
            serve_overrides=subject.serve_overrides,
            source=subject.source,
            metrale_version=__version__,
            frame=frame,
        )

    def _gate_record(self, record: RunRecord, gate: GateFacts) -> GateRecord:
        made = GateRecord.from_run(record, self._hardware, gate.git_sha, gate.dirty_paths, None, config=gate.config)
        made = made.with_closure(msgspec.json.encode(gate.closure))
        serve_env = self._subject.serve_env
        return made.with_serve_env(serve_env, config=gate.config) if serve_env else made


def _hardware_log(state: HardwareStateReport) -> list[LogLine]:
    concerns = [*state.precheck.concerns]
    if state.postcheck is not None and state.postcheck.validity == "invalid":
        concerns += state.postcheck.concerns
    return [LogLine("warning", concern) for concern in concerns]


def _write_new(folder: Path, record: RunRecord) -> Path:
    """Write a run record under a name that nobody has: exclusive create, then rename."""
    folder.mkdir(parents=True, exist_ok=True)
    now_ns = time.time_ns()
    while True:
        path = folder / f"run-{now_ns}.json"
        try:
            path.touch(exist_ok=False)  # takes the name; the whole file is renamed onto it
        except FileExistsError:
            now_ns += 1
            continue
        with whole_file(path) as target:
            target.write(render(record.to_builtins()))
        return path
