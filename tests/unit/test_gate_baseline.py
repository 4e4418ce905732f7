"""The gate's rules and entries, as their TOML files have them."""

from __future__ import annotations

import math

import pytest

from runspan.errors import GateError
from runspan.gate.baseline import Bound, Command, Ratio, Target, parse_baseline, parse_config

_SAMPLE = b"""
[benchmarks.log_metric]
callable = "benchmarks.gate:log_metric"
repeats = 7
warmups = 1
[hardware.cpu-xeon-8480.default]
[hardware.cpu-xeon-8480.default.benchmarks.log_metric]
status = "measured"
params = { points = "100000" }
bounds = { ratio = { max = 0.6, noise = 0.03 } }
"""


def _entry(line: str, model: str = "default") -> bytes:
    return f'[hardware.h100.{model}.benchmarks.decode]\nstatus = "measured"\n{line}\n'.encode()


def test_the_sample_of_the_format_is_read() -> None:
    """What to run, the default model and a bound with its noise are read."""
    baseline = parse_baseline(_SAMPLE)
    assert baseline.benchmarks["log_metric"].repeats == 7
    assert baseline.default_models == {"cpu-xeon-8480": "default"}
    assert baseline.benchmark_ids == {"log_metric"}
    entry = baseline.entry("cpu-xeon-8480", "default", "log_metric")
    assert entry is not None
    assert (entry.params, entry.bounds) == ({"points": "100000"}, {"ratio": Bound(max=0.6, noise=0.03)})
    assert baseline.entry("h100", "default", "log_metric") is None
    assert baseline.entry("cpu-xeon-8480", "other", "log_metric") is None
    assert baseline.entry("cpu-xeon-8480", "default", "other") is None


def test_aggregates_and_zero_metrics_are_read() -> None:
    """An entry over shards says how its metrics are put together, and which must be zero."""
    entry = parse_baseline(
        _entry('aggregate = { tokens = "sum", rate = { ratio = ["tokens", "seconds"] } }\nzero = ["errors"]')
    ).entry("h100", "default", "decode")
    assert entry is not None
    assert entry.aggregate == {"tokens": "sum", "rate": Ratio(ratio=("tokens", "seconds"))}
    assert entry.zero == ["errors"]


def test_one_model_is_a_hardwares_default() -> None:
    """The default model is the one named so or marked; none or two are an error that lists them."""
    assert parse_baseline(b"[hardware.h100.qwen]\ndefault = true\n[hardware.h100.llama]").default_models == {
        "h100": "qwen"
    }
    with pytest.raises(GateError, match=r"hardware 'h100' has one default model.*found none"):
        parse_baseline(b"[hardware.h100.qwen]")
    with pytest.raises(GateError, match="found 'default', 'qwen'"):
        parse_baseline(b"[hardware.h100.default]\n[hardware.h100.qwen]\ndefault = true")


@pytest.mark.parametrize(
    ("bound", "problem"),
    [
        ("{}", "has neither min nor max"),
        ("{ noise = 0.1 }", "has neither min nor max"),
        ("{ max = inf }", "is not finite"),
        ("{ min = nan }", "is not finite"),
        ("{ max = 1.0, noise = inf }", "is not finite"),
        ("{ min = 2, max = 1 }", "has min 2.0 above max 1.0"),
        ("{ max = 1.0, noise = -0.01 }", "has a noise of -0.01: expected 0 to 5%"),
        ("{ max = 1.0, noise = 0.051 }", "has a noise of 0.051: expected 0 to 5%"),
        ("{ min = 1, max = 100, noise = 0.06 }", "expected 0 to 5% of its smallest bound"),
        ("{ max = 0, noise = 1e-9 }", "expected 0 to 5% of its smallest bound"),
        ("{ min = 1, max = 1, noise = 0.01 }", "is an exact value, which takes no noise"),
    ],
)
def test_a_bound_that_bounds_nothing_is_refused(bound: str, problem: str) -> None:
    """A bound without an end, with an infinite one, or with a noise that swallows it is named with its benchmark."""
    with pytest.raises(GateError, match="the bound on 'ms' of 'decode'.*" + problem):
        parse_baseline(_entry(f"bounds = {{ ms = {bound} }}"))


@pytest.mark.parametrize(
    ("bound", "value", "holds"),
    [
        (Bound(max=10), 10, True),
        (Bound(max=10), 10.0001, False),
        (Bound(max=10), -1e9, True),
        (Bound(min=10), 10, True),
        (Bound(min=10), 9.9999, False),
        (Bound(min=10), 1e9, True),
        (Bound(max=10, noise=0.5), 10.5, True),
        (Bound(max=10, noise=0.5), 10.51, False),
        (Bound(min=10, noise=0.5), 9.5, True),
        (Bound(min=10, noise=0.5), 9.49, False),
        (Bound(min=-5, max=-1), -3, True),
        (Bound(min=-5, max=-1), 0, False),
        (Bound(min=3, max=3), 3, True),
        (Bound(min=3, max=3), 3.0000001, False),
        (Bound(max=0), 0, True),
        (Bound(max=0), 5, False),
        (Bound(max=10), math.nan, False),
        (Bound(max=10), -math.inf, False),
        (Bound(min=10), math.inf, False),
    ],
)
def test_a_value_lies_within_its_bounds_or_not(bound: Bound, value: float, holds: bool) -> None:
    """Cases 38 and 39: the bound's end tells the direction, its value belongs to it, and no NaN or infinity passes."""
    assert bound.holds(value) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[hardware.unknown.default]", "bounds for hardware 'unknown' compare nothing"),
        (b"[benchmarks.x]", "benchmark 'x' has either a callable or a command"),
        (b'[benchmarks.x]\ncallable = "a:b"\ncommand = ["c"]', "benchmark 'x' has either a callable or a command"),
        (b'[benchmarks.x]\ncallable = "a:b"\nrepeats = 0', "benchmark 'x' has at least one repeat"),
        (b"[benchmark.x]", "unknown field `benchmark`"),
        (_entry("boundz = { ms = { max = 1 } }"), r"unknown field `boundz`.*hardware"),
        (_entry("bounds = { ms = { maximum = 1 } }"), "unknown field `maximum`"),
        (_entry('bounds = { ms = { max = "1" } }'), "Expected `float"),
        (b'[hardware.h100.default.benchmarks.decode]\nstatus = "maybe"', "Invalid enum value 'maybe'"),
        (b"[hardware.h100.default.benchmarks.decode]", "missing required field `status`"),
        (b"a = 1\na = 2", "Cannot overwrite a value"),
        (b"\xff", "can't decode"),
        (b"a", r"\.benchmarks/bounds\.toml: "),
    ],
)
def test_a_mistake_in_the_entries_is_named(text: bytes, message: str) -> None:
    """An unknown, missing or mistyped key is an error that names the file and the key."""
    with pytest.raises(GateError, match=message):
        parse_baseline(text)


def test_all_mistakes_are_named_at_once() -> None:
    """Somebody who made three mistakes is told of three."""
    with pytest.raises(GateError) as raised:
        parse_baseline(b"[benchmarks.x]\n[hardware.unknown.a]\n" + _entry("bounds = { ms = {}, s = { max = inf } }"))
    for part in ("'x'", "'unknown'", "'ms'", "'s'"):
        assert part in str(raised.value)


def test_the_rules_are_read() -> None:
    """Paths, controls, program, signers and targets are read; what is left out has its default."""
    config = parse_config(b"""
perf_paths = ["src"]
perf_controls = { GRAPHS = "1" }
[targets.kernels]
paths = ["src/kernels"]
hash = { command = ["make", "hash"] }
[targets.python]
paths = ["src/py"]
hash = "python-ast"
""")
    assert (config.perf_paths, config.perf_controls, config.program) == (["src"], {"GRAPHS": "1"}, ["runspan", "bench"])
    assert config.targets == {
        "kernels": Target(paths=["src/kernels"], hash=Command(command=["make", "hash"])),
        "python": Target(paths=["src/py"], hash="python-ast"),
    }
    assert parse_config(b"") == parse_config(b"signers = []")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"perf_path = []", "unknown field `perf_path`"),
        (b'perf_paths = "src"', "Expected `array`"),
        (b'[targets.x]\npaths = []\nhash = "md5"', "Invalid enum value 'md5'"),
        (b"[targets.x]", "missing required field `paths`"),
    ],
)
def test_a_mistake_in_the_rules_is_named(text: bytes, message: str) -> None:
    """A rule that nobody knows is an error, not something to pass over."""
    with pytest.raises(GateError, match=rf"config\.toml: .*{message}"):
        parse_config(text)
