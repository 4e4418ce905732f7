"""GateRecord: one benchmark run as it is committed and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from runspan.errors import GateError
from runspan.gate.baseline import GateConfig
from runspan.gate.canonical import SourceFloat, parse, render
from runspan.gate.closure import TargetClosure, parse_closure
from runspan.gate.frame import Frame, FrameStatus, RunRecord, VerdictKind
from runspan.gate.hardware import Hardware, HardwareStateReport  # noqa: TC001 - msgspec reads the annotations
from runspan.gate.storing import read_limited, save_record

__all__ = ["SCHEMA", "GateRecord", "check_git_sha"]

SCHEMA = 1
_GIT_SHA = re.compile(r"[0-9a-f]{7,64}")
_U64 = 2**64
_VERDICTS: dict[VerdictKind, Literal["PASS", "FAIL", "info"]] = {
    VerdictKind.PASS: "PASS",
    VerdictKind.FAIL: "FAIL",
    VerdictKind.INFO: "info",
}
#: Fields that a record leaves out when they are empty.
_OMITTED_WHEN_EMPTY = frozenset(
    {"dirty_paths", "serve_overrides", "perf_env", "serve_resolved", "serve_env", "closure", "concerns"}
)
#: Fields that hold JSON of another program, kept as it stood.
_RAW = frozenset({"before", "after", "delta"})
#: Fields that are JSON's null when there is nothing to say, not left out.
_NULLABLE = frozenset({"verdict", "before"})
_LOGGED_LOUDLY = ("warning", "error")


class GateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run record of a benchmark, in the order of its JSON.

    A loaded record is written back byte for byte. Records are values: each ``with_…`` returns a new one.

    Attributes:
        schema: 1.
        benchmark_id, benchmark_name: which benchmark.
        git_sha: the commit that was checked out when the run started, 7 to 64 hex digits.
        dirty_paths: uncommitted performance paths at the start.
        recorded_at: unix seconds.
        target_model: the model that was measured.
        params: the benchmark's parameters.
        command: the invocation, rebuilt from the inputs.
        served_by: the recipe that served the run when the gate started its own server.
        serve_overrides: recipe keys changed for this run.
        metrale_version: version of the measuring program.
        hardware: the machine.
        hardware_state: its state around the run; None is unmeasured, not healthy.
        metrics: the terminal frame's.
        dataset_fingerprint: identity of the data scored.
        frame_status: a Failed record fails the check whatever its metrics.
        verdict: None when the frame has none.
        verdict_reason, summary: in words.
        perf_env: performance controls, resolved.
        serve_resolved, serve_env: how the server was set up; for disclosure only.
        served_recipe_sha256: identity of the recipe and the run's overrides.
        closure: what each code target compiled to.
    """

    schema: int = SCHEMA
    benchmark_id: str
    benchmark_name: str
    git_sha: str
    dirty_paths: Sequence[str] = []
    recorded_at: int
    target_model: str
    params: Mapping[str, str]
    command: Sequence[str]
    served_by: str | None = None
    serve_overrides: Mapping[str, str] = {}
    metrale_version: str
    hardware: Hardware
    hardware_state: HardwareStateReport | None = None
    metrics: Mapping[str, float]
    dataset_fingerprint: str | None = None
    frame_status: FrameStatus
    verdict: Literal["PASS", "FAIL", "info"] | None = None
    verdict_reason: str
    summary: str
    perf_env: Mapping[str, str] = {}
    serve_resolved: Mapping[str, str] = {}
    serve_env: Mapping[str, str] = {}
    served_recipe_sha256: str | None = None
    closure: Mapping[str, TargetClosure] = {}

    def __post_init__(self) -> None:
        check_git_sha(self.git_sha)

    @classmethod
    def from_run(
        cls,
        record: RunRecord,
        hardware: Hardware,
        git_sha: str,
        dirty_paths: Sequence[str],
        served_by: str | None,
        *,
        config: GateConfig | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> GateRecord:
        """Make the record of a run that ended.

        Args:
            record: the run.
            hardware: the machine it ran on.
            git_sha: the commit that was checked out when it started.
            dirty_paths: the uncommitted performance paths at that time.
            served_by: the recipe of the server that the gate started; None: it started none.
            config: the repository's rules: the program, and the performance controls; None: the defaults.
            environ: where the performance controls are read; None: the process's environment.

        Raises:
            GateError: the sha is empty or ill-formed, or the run has not ended.
        """
        config = config or GateConfig()
        frame = record.frame
        if frame.status is FrameStatus.RUNNING:
            raise GateError(
                f"run {record.run_id!r} of benchmark {record.benchmark_id!r} is Running: expected its last frame"
            )
        verdict = frame.verdict
        return cls(
            benchmark_id=record.benchmark_id,
            benchmark_name=record.benchmark_name,
            git_sha=git_sha,
            dirty_paths=sorted(dirty_paths),
            recorded_at=record.recorded_at,
            target_model=record.target_model,
            params=dict(record.params),
            command=_command(record, config.program, is_served_here=served_by is not None),
            served_by=served_by,
            serve_overrides=dict(record.serve_overrides),
            metrale_version=record.metrale_version,
            hardware=hardware,
            hardware_state=frame.hardware_state,
            metrics=dict(frame.metrics),
            dataset_fingerprint=frame.dataset_fingerprint,
            frame_status=frame.status,
            verdict=None if verdict is None else _VERDICTS[verdict.kind],
            verdict_reason="" if verdict is None else verdict.reason,
            summary=_summary(record.target_model, frame),
            perf_env=_resolve(config.perf_controls, os.environ if environ is None else environ),
        )

    @classmethod
    def from_json(cls, data: bytes) -> GateRecord:
        """Read a record.

        Raises:
            GateError: it is no JSON of a record, see :func:`~runspan.gate.canonical.parse`, has a newer schema, or
                lacks a field or has one of another type.
        """
        tree = parse(data)
        if not isinstance(tree, dict):
            raise GateError("expected a JSON object with the fields of a gate record")
        schema = tree.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            raise GateError(f"schema {schema} is newer than {SCHEMA}, which this version reads: upgrade runspan")
        if schema != SCHEMA or isinstance(schema, bool):
            raise GateError(f"schema {schema!r}: expected {SCHEMA}")
        try:
            loaded = msgspec.convert({**tree, **_without_source_text(tree)}, cls)
        except msgspec.ValidationError as error:
            raise GateError(f"no gate record: {error}") from error
        if not 0 <= loaded.recorded_at < _U64:
            raise GateError(f"recorded_at {loaded.recorded_at}: expected unix seconds, below 2^64")
        return _with_source_text(loaded, tree)

    @classmethod
    def load(cls, path: str | Path) -> GateRecord:
        """Read a record from its file.

        Raises:
            GateError: it cannot be read, or is no record.
        """
        data = read_limited(Path(path))
        try:
            return cls.from_json(data)
        except GateError as error:
            raise GateError(f"{path}: {error}") from error

    def to_json(self) -> bytes:
        """Write the record: fields in their order, maps sorted, see :mod:`runspan.gate.canonical`.

        Raises:
            ValueError: a metric is not finite.
        """
        return render(_ordered(self))

    def save(self, root: str | Path) -> Path:
        """Write the record below a repository's top and return its path, see :func:`~runspan.gate.storing.save_record`.

        Raises:
            GateError: it cannot be written, or would take the place of a record that failed.
        """
        return save_record(self, Path(root))

    def with_served_recipe(self, sha256: str) -> GateRecord:
        """Return the record with the identity of the recipe that served the run."""
        return msgspec.structs.replace(self, served_recipe_sha256=sha256)

    def with_closure(self, baked: bytes | str) -> GateRecord:
        """Return the record with what its targets compiled to, as JSON; what cannot be read attests nothing."""
        return msgspec.structs.replace(self, closure=parse_closure(baked))

    def with_serve_env(
        self, env: Mapping[str, str], *, config: GateConfig | None = None, environ: Mapping[str, str] | None = None
    ) -> GateRecord:
        """Return the record with the levers applied to the server, and its performance controls resolved anew.

        Args:
            env: the levers; they come before the process's environment.
            config: the repository's rules; None: the controls that the record has, with their values as defaults.
            environ: the process's environment; None: the real one.
        """
        controls = self.perf_env if config is None else config.perf_controls
        applied = os.environ if environ is None else environ
        return msgspec.structs.replace(self, serve_env=dict(env), perf_env=_resolve(controls, env, applied))

    def with_serve_resolved(self, settings: Mapping[str, str]) -> GateRecord:
        """Return the record with the settings resolved from the recipe."""
        return msgspec.structs.replace(self, serve_resolved=dict(settings))

    def shard(self) -> tuple[int, int] | None:
        """Return (index, count) of the part that the record measured; None when it is no shard."""
        index, count = self.metrics.get("shard.index"), self.metrics.get("shard.count")
        if index is None or count is None or not float(index).is_integer() or not float(count).is_integer():
            return None
        return (int(index), int(count)) if 0 <= index < count else None

    def verdict_passes(self) -> bool:
        """Whether the verdict is PASS: no verdict and "info" are not."""
        return self.verdict == "PASS"

    def frame_status_failed(self) -> bool:
        """Whether the run failed."""
        return self.frame_status is FrameStatus.FAILED


def check_git_sha(sha: str) -> None:
    """Refuse what is no commit's own name.

    Raises:
        GateError: it is not 7 to 64 lower-case hex digits.
    """
    if not _GIT_SHA.fullmatch(sha):
        raise GateError(f"git_sha {sha!r}: expected 7 to 64 lower-case hex digits, as `git rev-parse HEAD` prints them")


def _command(record: RunRecord, program: Sequence[str], *, is_served_here: bool) -> list[str]:
    """Rebuild the invocation; of a server that the gate started itself, neither URL nor model are part of it."""
    command = [*program, "run", record.benchmark_id]
    for option, value in (("--url", record.target_url), ("--model", record.target_model)):
        if value and not is_served_here:
            command += [option, value]
    for option, pairs in (("--param", record.params), ("--serve-override", record.serve_overrides)):
        for key, value in sorted(pairs.items()):
            command += [option, f"{key}={value}"]
    return [*command, "--gate"]


def _summary(model: str, frame: Frame) -> str:
    metrics = ", ".join(f"{key}={value:.2f}" for key, value in sorted(frame.metrics.items())) or "no metrics"
    verdict = "no verdict" if frame.verdict is None else f"{frame.verdict.kind}: {frame.verdict.reason}"
    warning = next((f" · warning: {line.message}" for line in frame.log if line.level in _LOGGED_LOUDLY), "")
    return re.sub(r"\r\n|\r|\n", " ", f"{model} · {metrics} · {verdict}{warning}")


def _resolve(controls: Mapping[str, str], *environments: Mapping[str, str]) -> dict[str, str]:
    """Return each control's value: the first environment's that sets it to more than blanks, else its default."""
    resolved = {}
    for name, default in controls.items():
        values = (environment.get(name, "") for environment in environments)
        resolved[name] = next((value for value in values if value.strip()), default)
    return resolved


def _without_source_text(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are typed as floats, with plain ones."""
    plain: dict[str, Any] = {}
    if isinstance(metrics := tree.get("metrics"), Mapping):
        plain["metrics"] = {key: _plain(value) for key, value in metrics.items()}
    if isinstance(hardware := tree.get("hardware"), Mapping):
        plain["hardware"] = {key: _plain(value) for key, value in hardware.items()}
    return plain


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, SourceFloat) else value


def _with_source_text(record: GateRecord, tree: Mapping[str, Any]) -> GateRecord:
    """Put the numbers' text back that :func:`_without_source_text` took away."""
    metrics = {key: _sourced(value) for key, value in tree["metrics"].items()}
    hardware = record.hardware
    if hardware.sm_clock_mhz is not None:
        hardware = msgspec.structs.replace(hardware, sm_clock_mhz=_sourced(tree["hardware"]["sm_clock_mhz"]))
    return msgspec.structs.replace(record, metrics=metrics, hardware=hardware)


def _sourced(number: int | SourceFloat) -> SourceFloat:
    return number if isinstance(number, SourceFloat) else SourceFloat(str(number))


def _ordered(value: Any) -> Any:
    """Return a record as JSON's own values: the fields in their order, maps sorted, what is empty left out."""
    if isinstance(value, msgspec.Struct):
        ordered = {}
        for field in msgspec.structs.fields(value):
            item = getattr(value, field.name)
            if (item is None and field.name not in _NULLABLE) or (field.name in _OMITTED_WHEN_EMPTY and not item):
                continue
            ordered[field.name] = item if field.name in _RAW else _ordered(item)
        return ordered
    if isinstance(value, Mapping):
        return {key: _ordered(item) for key, item in sorted(value.items())}
    return value
