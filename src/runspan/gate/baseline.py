"""What a gate goes by: the rules in ``.benchmarks/config.toml`` and the entries in ``.benchmarks/bounds.toml``."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence  # noqa: TC003 - msgspec reads the annotations
from typing import Any, Literal, TypeVar

import msgspec

from runspan.errors import GateError

__all__ = [
    "BOUNDS_PATH",
    "CONFIG_PATH",
    "Baseline",
    "BaselineEntry",
    "Benchmark",
    "Bound",
    "GateConfig",
    "Ratio",
    "Target",
    "parse_baseline",
    "parse_config",
]

CONFIG_PATH = ".benchmarks/config.toml"
BOUNDS_PATH = ".benchmarks/bounds.toml"
#: The model that needs no mark to be its hardware's default.
_DEFAULT_MODEL = "default"
_UNKNOWN_HARDWARE = "unknown"
#: What a noise allowance may be of the smallest bound that is given.
_MAX_NOISE = 0.05
_Parsed = TypeVar("_Parsed")


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a configuration file: a key that it does not know is a mistake, not something to pass over."""


class Command(_Table, frozen=True):
    """A command whose output tells what a target compiles to."""

    command: list[str]


class Target(_Table, frozen=True):
    """A code target: its files, and how what they compile to is told.

    Attributes:
        paths: files and folders.
        hash: ``files``: their bytes; ``python-ast``: their syntax trees, so that comments do not count; or a command.
    """

    paths: list[str]
    hash: Literal["files", "python-ast"] | Command = "files"


class GateConfig(_Table, frozen=True):
    """The rules.

    Attributes:
        perf_paths: files and folders whose change may change a measurement.
        test_paths: among them, those that never do.
        boundary_paths: those whose change invalidates every record.
        excluded: by benchmark, performance paths that do not concern it.
        perf_controls: variables that change a measurement, with their defaults.
        env_prefix: what the names of other variables of the measuring program begin with.
        program: the measuring program, as a record's command begins.
        signers: public keys (Ed25519, base64) of those who may sign; none: records need no signature.
        targets: code targets by name.
    """

    perf_paths: list[str] = []
    test_paths: list[str] = []
    boundary_paths: list[str] = []
    excluded: dict[str, list[str]] = {}
    perf_controls: dict[str, str] = {}
    env_prefix: str = ""
    program: list[str] = msgspec.field(default_factory=lambda: ["runspan", "bench"])
    signers: list[str] = []
    targets: dict[str, Target] = {}


class Benchmark(_Table, frozen=True):
    """What to run.

    Attributes:
        callable: ``module:function``, called with the run and its parameters.
        command: a command that writes its result to the file named in ``RUNSPAN_BENCH_OUT``.
        name: for people; None: the id.
        repeats: how often it is measured.
        warmups: how often it is run before that.
    """

    callable: str | None = None
    command: list[str] | None = None
    name: str | None = None
    repeats: int = 1
    warmups: int = 0


class Bound(_Table, frozen=True):
    """The range that a metric must lie in; which end is set tells which direction is better.

    Attributes:
        min: the lowest value.
        max: the highest value; equal to ``min``: an exact value.
        noise: by how much a value may miss a bound.
    """

    min: float | None = None
    max: float | None = None
    noise: float = 0.0

    def holds(self, value: float) -> bool:
        """Whether a value lies in the range; one that is not finite never does."""
        if not math.isfinite(value):
            return False
        above = self.min is None or value + self.noise >= self.min
        return above and (self.max is None or value - self.noise <= self.max)

    def problem(self) -> str | None:
        """Say what is wrong with the bound itself."""
        given = [bound for bound in (self.min, self.max) if bound is not None]
        if not given:
            return "has neither min nor max"
        if not all(map(math.isfinite, (*given, self.noise))):
            return "has a value that is not finite"
        if self.min is not None and self.max is not None and self.min > self.max:
            return f"has min {self.min} above max {self.max}"
        if self.noise and self.min == self.max:
            return "is an exact value, which takes no noise"
        if not 0 <= self.noise <= _MAX_NOISE * min(map(abs, given)):
            return f"has a noise of {self.noise}: expected 0 to {_MAX_NOISE:.0%} of its smallest bound"
        return None


class Ratio(_Table, frozen=True):
    """An aggregate over shards: the sum of one metric by the sum of another."""

    ratio: tuple[str, str]


class BaselineEntry(_Table, frozen=True):
    """A benchmark's entry for one hardware and model.

    Attributes:
        status: an unmeasured entry never passes.
        params: pinned parameters.
        serve_overrides: pinned recipe keys.
        serve_env: levers for the server.
        aggregate: how each metric is put together from shards; given, only a complete group of shards counts.
        zero: metrics that must be zero, of shards in each.
        bounds: by metric.
    """

    status: Literal["measured", "unmeasured"]
    params: dict[str, str] = {}
    serve_overrides: dict[str, str] = {}
    serve_env: dict[str, str] = {}
    aggregate: dict[str, Literal["sum"] | Ratio] = {}
    zero: list[str] = []
    bounds: dict[str, Bound] = {}


class _Model(_Table, frozen=True):
    default: bool = False
    benchmarks: dict[str, BaselineEntry] = {}


class _BoundsFile(_Table, frozen=True):
    benchmarks: dict[str, Benchmark] = {}
    hardware: dict[str, dict[str, _Model]] = {}


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of ``bounds.toml``.

    Attributes:
        benchmarks: what to run, by id.
        entries: by hardware key, model and benchmark.
        default_models: by hardware key.
    """

    benchmarks: Mapping[str, Benchmark] = {}
    entries: Mapping[str, Mapping[str, Mapping[str, BaselineEntry]]] = {}
    default_models: Mapping[str, str] = {}

    @property
    def benchmark_ids(self) -> frozenset[str]:
        """The benchmarks that have an entry on any hardware."""
        return frozenset(
            benchmark_id for models in self.entries.values() for entries in models.values() for benchmark_id in entries
        )

    def removed_in(self, later: Baseline) -> dict[str, list[str]]:
        """Return, by benchmark, the hardware and models whose entries a later version lacks."""
        removed: dict[str, list[str]] = {}
        for key, models in self.entries.items():
            for model, entries in models.items():
                for benchmark_id in entries:
                    if later.entry(key, model, benchmark_id) is None:
                        removed.setdefault(benchmark_id, []).append(f"{key} ({model})")
        return removed

    def entry(self, hardware_key: str, model: str, benchmark_id: str) -> BaselineEntry | None:
        """Return a benchmark's entry; None when there is none."""
        return self.entries.get(hardware_key, {}).get(model, {}).get(benchmark_id)


def parse_config(text: bytes, name: str = CONFIG_PATH) -> GateConfig:
    """Read the rules.

    Raises:
        GateError: it is no TOML, or a key is unknown, missing or of another type.
    """
    return _parse(text, name, GateConfig)


def parse_baseline(text: bytes, name: str = BOUNDS_PATH) -> Baseline:
    """Read the entries.

    Raises:
        GateError: it is no TOML, a key is unknown, missing or of another type, a bound cannot be used, a hardware has
            not exactly one default model, or an entry stands for hardware ``unknown``. All mistakes are named at once.
    """
    file = _parse(text, name, _BoundsFile)
    problems = [*_benchmark_problems(file.benchmarks), *_entry_problems(file.hardware)]
    defaults = {}
    for key, models in file.hardware.items():
        marked = [model for model, table in models.items() if table.default or model == _DEFAULT_MODEL]
        if len(marked) != 1:
            found = ", ".join(map(repr, marked)) or "none"
            problems.append(
                f"hardware {key!r} has one default model, named `default` or with `default = true`: found {found}"
            )
        else:
            defaults[key] = marked[0]
    if problems:
        raise GateError(f"{name}: " + "; ".join(problems))
    entries = {
        key: {model: table.benchmarks for model, table in models.items()} for key, models in file.hardware.items()
    }
    return Baseline(benchmarks=file.benchmarks, entries=entries, default_models=defaults)


def _parse(text: bytes, name: str, kind: type[_Parsed]) -> _Parsed:
    try:
        tree: dict[str, Any] = tomllib.loads(text.decode("utf-8"))
        return msgspec.convert(tree, kind)
    except (ValueError, RecursionError) as error:  # msgspec's and tomllib's errors are ValueErrors too
        raise GateError(f"{name}: {error}") from error


def _benchmark_problems(benchmarks: Mapping[str, Benchmark]) -> Sequence[str]:
    problems = []
    for benchmark_id, benchmark in benchmarks.items():
        if (benchmark.callable is None) == (benchmark.command is None):
            problems.append(f"benchmark {benchmark_id!r} has either a callable or a command")
        if benchmark.repeats < 1 or benchmark.warmups < 0:
            problems.append(f"benchmark {benchmark_id!r} has at least one repeat and no fewer than 0 warmups")
    return problems


def _entry_problems(hardware: Mapping[str, Mapping[str, _Model]]) -> Sequence[str]:
    problems = []
    for key, models in hardware.items():
        if key == _UNKNOWN_HARDWARE:
            problems.append("bounds for hardware 'unknown' compare nothing: find out what was measured")
        for model, table in models.items():
            for benchmark_id, entry in table.benchmarks.items():
                for metric, bound in entry.bounds.items():
                    if (problem := bound.problem()) is not None:
                        problems.append(f"the bound on {metric!r} of {benchmark_id!r} ({key}, {model}) {problem}")
    return problems
