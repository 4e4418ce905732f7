"""What ``runspan doctor`` looks at: what a run started here and now would find."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import tempfile
import time
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

from runspan._endpoints import endpoints
from runspan._version import __version__
from runspan.cli._output import format_bytes
from runspan.config import TracingConfig
from runspan.distributed import RankContext, resolve_run_id
from runspan.errors import ConfigError, RunspanError
from runspan.redaction import Redactor
from runspan.stack.findings import Check, CheckState
from runspan.storage.inspection import network_file_system, read_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from runspan.cli._workspace import Workspace

__all__ = ["all_checks"]

#: Below this a long run may fill the disk.
_LITTLE_SPACE_BYTES = 1 << 30
#: A clock this far from a file system's is wrong on one of the two machines.
_MAX_SKEW_S = 5.0
_EXTRAS = {
    "arrow": ("pyarrow",),
    "demo": ("numpy", "sklearn"),
    "gpu": ("pynvml",),
    "nvtx": ("nvtx",),
    "pandas": ("pandas",),
    "postgres": ("psycopg",),
    "recipes": ("yaml",),
    "rpc": ("grpc_health", "grpc_reflection"),
    "signing": ("cryptography",),
    "sql": ("duckdb",),
}


def all_checks(workspace: Workspace, environ: Mapping[str, str]) -> Iterator[Check]:
    """Look at everything; a check that finds a problem does not stop the others."""
    yield Check("runspan", CheckState.OK, f"{__version__}, Python {platform.python_version()}, {platform.system()}")
    yield from _launcher(environ)
    yield _folder(workspace.trace_dir)
    yield from _network(workspace.trace_dir)
    yield from _storage(workspace)
    yield from _otlp(environ)
    yield from _extras()
    yield _start_method()
    yield _clock(workspace.trace_dir)


def _launcher(environ: Mapping[str, str]) -> Iterator[Check]:
    try:
        context = RankContext.from_env(environ)
    except ConfigError as error:
        yield Check("launcher", CheckState.PROBLEM, str(error))
        return
    yield Check("launcher", CheckState.OK, f"{context.launcher}: rank {context.rank} of {context.world_size}")
    try:
        run_id = resolve_run_id(environ, context, new_id=lambda: "")
    except ConfigError as error:
        yield Check("run id", CheckState.PROBLEM, str(error))
    else:
        yield Check("run id", CheckState.OK, run_id or "a new one for each run")


def _folder(trace_dir: Path) -> Check:
    existing = next(folder for folder in (trace_dir, *trace_dir.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        found = f"{trace_dir}: {existing} cannot be written to"
        return Check("run directories", CheckState.PROBLEM, found, "set RUNSPAN_DIR to a folder that can be")
    free = shutil.disk_usage(existing).free
    state = CheckState.OK if free > _LITTLE_SPACE_BYTES else CheckState.NOTE
    is_new = "" if existing == trace_dir else ", will be created"
    return Check("run directories", state, f"{trace_dir}{is_new}, {format_bytes(free)} free")


def _network(trace_dir: Path) -> Iterator[Check]:
    kind = network_file_system(trace_dir)
    if kind is None:
        yield Check("file system", CheckState.OK, "local")
        return
    yield Check(
        "file system",
        CheckState.NOTE,
        f"{kind}, a network file system",
        "each rank writes a file of its own, which is safe; a SQLite database there goes without its write-ahead log,"
        " and only rank 0 writes it: run `runspan import` afterwards, or use PostgreSQL",
    )


def _storage(workspace: Workspace) -> Iterator[Check]:
    description = workspace.storage_description
    if workspace.storage_url is None:
        yield Check("storage", CheckState.NOTE, "turned off", "`runspan import` fills one from the run directories")
        return
    try:
        database = workspace.database_file
        if database is not None and not database.exists():
            yield Check("storage", CheckState.OK, f"{description}, will be created")
        else:
            yield Check("storage", CheckState.OK, f"{description}, {_schema_found(workspace.storage_url)}")
        kind = None if database is None else network_file_system(database)
    except RunspanError as error:
        yield Check("storage", CheckState.PROBLEM, Redactor().redact_text(str(error)))
        return
    if kind is not None:
        advice = "only rank 0 writes it there: use PostgreSQL, or a local disk with --storage"
        yield Check("storage", CheckState.NOTE, f"SQLite on {kind}, a network file system", advice)


def _schema_found(url: str) -> str:
    """Say what the database holds, without changing it.

    Raises:
        StorageError: it cannot be opened, or a newer runspan made it.
    """
    state = read_schema(url)
    if state.version is None:
        return "reachable, empty: the first run creates its tables"
    suffix = "" if state.is_current else ": the next run brings it up to date"
    return f"reachable, schema {state.version}{suffix}"


def _otlp(environ: Mapping[str, str]) -> Iterator[Check]:
    try:
        config = TracingConfig.from_env(environ)
        targets = endpoints(config)
    except ConfigError as error:
        yield Check("settings", CheckState.PROBLEM, str(error))
        return
    if not config.tracing_enabled:
        yield Check("otlp", CheckState.NOTE, "tracing is turned off", "OTEL_SDK_DISABLED or RUNSPAN_TRACING_ENABLED")
    elif not targets:
        yield Check(
            "otlp", CheckState.NOTE, "not configured", "set OTEL_EXPORTER_OTLP_ENDPOINT to ship spans and metrics"
        )
    if targets:
        from runspan.stack.endpoint import examine_endpoint  # noqa: PLC0415 - loads gRPC

        for signal, target in targets.items():
            yield examine_endpoint(f"otlp {signal}", target, signal)


def _extras() -> Iterator[Check]:
    for extra, modules in _EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        if missing:
            yield Check(f"extra {extra}", CheckState.NOTE, "not installed", f"pip install 'runspan[{extra}]'")
        else:
            yield Check(f"extra {extra}", CheckState.OK, _versions(modules))


def _versions(modules: tuple[str, ...]) -> str:
    packages = metadata.packages_distributions()
    names = [packages.get(module, [module])[0] for module in modules]
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


def _start_method() -> Check:
    method = multiprocessing.get_start_method()
    advice = "a child joins the run by start_run() with the environment that run.child_environ() returns"
    if method == "fork":
        advice = "a forked child writes a trace file of its own; the parent ships its spans at finish"
    return Check("child processes", CheckState.OK, f"start method {method}", advice)


def _clock(trace_dir: Path) -> Check:
    probe = next(folder for folder in (trace_dir, *trace_dir.parents) if folder.exists())
    skew_s = _file_clock_skew_s(probe)
    if skew_s is not None and abs(skew_s) > _MAX_SKEW_S:
        found = f"{skew_s:+.1f} s between this machine and the file system of {probe}"
        return Check(
            "clock", CheckState.PROBLEM, found, "synchronise the clocks (NTP): spans of several hosts will not line up"
        )
    found = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
    resolution_ns = round(time.get_clock_info("perf_counter").resolution * 1e9)
    return Check("clock", CheckState.OK, f"{found}, resolution {resolution_ns:,} ns")


def _file_clock_skew_s(folder: Path) -> float | None:
    """Return how far the clock that stamps files here is ahead of this machine's; None when nothing can be written."""
    try:
        before_s = time.time()
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\n")
            probe.flush()
            return os.fstat(probe.fileno()).st_mtime - before_s
    except OSError:
        return None
