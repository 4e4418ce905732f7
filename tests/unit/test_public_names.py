from __future__ import annotations

import subprocess
import sys

import pytest

import runspan
import runspan.gate
import runspan.tracefile

#: The list of the architecture, letter for letter.
_PUBLIC = """
__version__ start_run current_run open_storage read_metrics Run RunStatus RunInfo TracingConfig CaptureSchedule
RankContext TraceRunMeta ExecutionPhase TimingMode RunTraceProcessor ExperimentStorage InMemoryStorage SqlStorage Filter
FilterOp MetricPoint MetricSnapshot Trend ResourceSnapshot DashboardSource StorageDashboard Subscription Alert
AlertLevel RunspanError ConfigError StorageError ExperimentNotFoundError RunNotFoundError InvalidStateError
TraceFormatError SchemaVersionError GateError MissingExtraError
""".split()  # noqa: SIM905 - as the architecture lists them

_PUBLIC_GATE = """
GateRecord RunRecord Frame FrameStatus Verdict VerdictKind Hardware HardwareStateReport TargetClosure Bound Baseline
GateOutcome GateResult Standing check check_record
""".split()  # noqa: SIM905 - as the architecture lists them

#: What loads when a Run starts, and not before.
_HEAVY = (
    "grpc",
    "sqlalchemy",
    "torch",
    "psutil",
    "typer",
    "rich",
    "numpy",
    "pandas",
    "requests",
    "opentelemetry.sdk.metrics",
    "opentelemetry.exporter",
)


def test_all_is_the_list_of_the_architecture() -> None:
    """The package exports exactly the names that its architecture fixes, each once."""
    assert sorted(runspan.__all__) == sorted(_PUBLIC)


def test_the_gates_names_are_those_of_the_architecture() -> None:
    """The gate's package exports exactly its listed names, and each resolves."""
    assert sorted(runspan.gate.__all__) == sorted(_PUBLIC_GATE)
    for name in runspan.gate.__all__:
        assert getattr(runspan.gate, name) is not None


def test_all_equals_the_visible_names() -> None:
    """Every public name resolves and is listed by dir(), and nothing else is."""
    assert dir(runspan) == sorted(runspan.__all__)
    for name in runspan.__all__:
        assert getattr(runspan, name) is not None
    namespace: dict[str, object] = {}
    exec("from runspan import *", namespace)  # noqa: S102 - a user's star import
    assert namespace.keys() - {"__builtins__"} == set(runspan.__all__)
    for name in runspan.tracefile.__all__:
        assert getattr(runspan.tracefile, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy names do not hide a typing mistake."""
    with pytest.raises(AttributeError, match="'runspan' has no attribute 'start_rum'"):
        _ = runspan.start_rum


@pytest.mark.parametrize("statement", ["import runspan", "import runspan; runspan.TracingConfig; runspan.RunStatus"])
def test_importing_loads_nothing_heavy(statement: str) -> None:
    """Neither grpc, SQLAlchemy, numpy, psutil, the CLI's libraries nor an exporter load with the package."""
    code = f"{statement}; import sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "runspan" in loaded
    assert [name for name in loaded if name.startswith(_HEAVY)] == []


def test_a_run_without_export_loads_no_exporter() -> None:
    """A Run that ships nothing pays for no exporter and no metrics SDK."""
    code = """
import runspan, sys
with runspan.start_run("exp", storage=runspan.InMemoryStorage(), config=runspan.TracingConfig(trace_dir=None)):
    print(*sorted(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light = tuple(name for name in _HEAVY if name != "psutil")
    assert [name for name in done.stdout.split() if name.startswith(light)] == []
