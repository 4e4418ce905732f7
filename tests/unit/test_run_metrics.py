from __future__ import annotations

import gc
import logging
import math
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import runspan
from runspan.errors import ConfigError, InvalidStateError
from runspan.storage import SqlStorage
from runspan.testing import FakeClock
from support.programs import events_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.live import LiveRuns

_NAN, _INF = float("nan"), float("inf")


def _points(live: LiveRuns, run: runspan.Run, key: str = "loss") -> list[tuple[int, float]]:
    """Finish the run and return what storage has of a key."""
    run.finish()
    return [(point.step, point.value) for point in live.storage.get_metrics(run.id, key)]


def _metric_lines(live: LiveRuns, run: runspan.Run) -> list[tuple[Any, Any, Any]]:
    return [(line["key"], line["step"], line["value"]) for line in events_of(live.lines(run), "metric")]


def test_each_key_counts_its_own_steps_from_0(live: LiveRuns) -> None:
    """log_metric goes on at the key's own next step, in the file and in storage alike."""
    run = live.start()
    for value in (0.5, 0.25, 0.125):
        run.log_metric("loss", value)
    run.log_metric("accuracy", 0.9)
    assert run.current_step("loss") == 3
    assert run.current_step("unknown") == 0
    assert _metric_lines(live, run) == [
        ("loss", 0, 0.5),
        ("loss", 1, 0.25),
        ("loss", 2, 0.125),
        ("accuracy", 0, 0.9),
    ]
    assert _points(live, run) == [(0, 0.5), (1, 0.25), (2, 0.125)]


def test_explicit_steps_never_touch_the_counter(live: LiveRuns) -> None:
    """Case 20: explicit steps are kept exactly, may go back, repeat and be 0; automatic steps go on beside."""
    run = live.start()
    for index, step in enumerate((8073, 0, 7, 7)):
        run.log_metric("a", float(index))
        run.log_metric_at("b", step, float(index))
        run.log_metric_at("a", 1000 + index, -1.0)
    run.log_metrics({"b": 9.0}, step=2)
    assert run.current_step("a") == 4
    assert run.current_step("b") == 0
    run.log_metric("b", 10.0)
    assert _points(live, run, "b") == [(0, 1.0), (0, 10.0), (2, 9.0), (7, 2.0), (7, 3.0), (8073, 0.0)]
    assert [step for step, value in _points(live, run, "a") if value >= 0] == [0, 1, 2, 3]
    assert [line["explicit"] for line in events_of(live.lines(run), "metric", key="b") if "explicit" in line] == [
        True
    ] * 4


def test_log_metrics_is_one_line(live: LiveRuns) -> None:
    """Several values at once: each key at its own next step, or all at an explicit one."""
    run = live.start()
    run.log_metric("a", 0.0)
    run.log_metrics({"a": 1.0, "b": 2.0})
    run.log_metrics({"a": 3.0, "c": 4.0}, step=50)
    first, second = events_of(live.lines(run), "metrics")
    assert (first["values"], first["steps"]) == ({"a": 1.0, "b": 2.0}, {"a": 1, "b": 0})
    assert "step" not in first
    assert (second["values"], second["step"]) == ({"a": 3.0, "c": 4.0}, 50)
    assert "steps" not in second
    assert (run.current_step("a"), run.current_step("b"), run.current_step("c")) == (2, 1, 0)
    assert run.metric_keys() == ["a", "b", "c"]
    assert _points(live, run, "a") == [(0, 0.0), (1, 1.0), (50, 3.0)]


def test_metric_keys_are_in_first_logged_order(live: LiveRuns) -> None:
    """Keys with explicit steps only are among them; a refused value adds none."""
    run = live.start()
    run.log_metric_at("z", 5, 1.0)
    run.log_metric("a", 1.0)
    run.log_metric("refused", "text")
    run.log_metrics({"m": 1.0, "z": 2.0})
    assert run.metric_keys() == ["z", "a", "m"]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float32(1.5), 1.5),
        (np.float64(2.5), 2.5),
        (np.int64(3), 3),
        (np.bool_(True), 1.0),
        (np.array(4.5), 4.5),
        (np.array([5.5]), 5.5),
        (np.array([[6]]), 6),
        (True, 1.0),
        (False, 0.0),
        (7, 7),
        (-(2**63), -(2**63)),
        (2**53 + 1, 2**53 + 1),
        (2**63 - 1, 2**63 - 1),
        (2**64 - 1, 2**64 - 1),
        (2**64, 2.0**64),
        (-(10**400), "-Infinity"),
        (_NAN, "NaN"),
        (_INF, "Infinity"),
        (-_INF, "-Infinity"),
        (np.float32("nan"), "NaN"),
    ],
)
def test_values_that_are_numbers(live: LiveRuns, value: Any, kept: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Cases 9 and 10: numbers of every make become one number, exact to 64 bits; JSON's type is a number or a name."""
    run = live.start()
    run.log_metric("k", value)
    run.log_metric_at("k", 5, value)
    run.log_metrics({"k": value})
    lines = live.lines(run)
    values = [line["value"] for line in events_of(lines, "metric")]
    values += [line["values"]["k"] for line in events_of(lines, "metrics")]
    assert values == [kept] * 3
    assert [type(each) for each in values] == [type(kept)] * 3
    assert caplog.records == []


@pytest.mark.parametrize(
    "value", ["3", None, [1.0], np.array([1.0, 2.0]), np.array([]), 1j, {}, object(), np.datetime64("2020-01-01")]
)
def test_anything_else_is_one_warning_and_not_recorded(
    live: LiveRuns, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 9: no number: one warning that names the key, a count, nothing recorded, the counter where it was."""
    run = live.start()
    for _ in range(3):
        run.log_metric("my/key", value)
        run.log_metric_at("my/key", 3, value)
    run.log_metrics({"my/key": value, "good": 1.0})
    assert run.current_step("my/key") == 0
    assert run.metric_keys() == ["good"]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("runspan", logging.WARNING)
    assert "'my/key'" in record.getMessage()
    run.finish()
    lines = live.lines(run)
    assert events_of(lines, "metric") == []
    assert events_of(lines, "dropped") == [
        {"kind": "dropped", "signal": "metric", "reason": "invalid_value", "count": 7}
    ]


@pytest.mark.parametrize(
    ("step", "kept"), [(0, 0), (np.int64(3), 3), (4.0, 4), (np.array(5), 5), (2**63 - 1, 2**63 - 1)]
)
def test_steps_that_are_integers(live: LiveRuns, step: Any, kept: int) -> None:
    """A step is a non-negative integer, numpy's and an integral float too."""
    run = live.start()
    run.log_metric_at("k", step, 1.0)
    run.log_metrics({"k": 1.0}, step=step)
    lines = live.lines(run)
    assert [line["step"] for line in lines if line["kind"] in {"metric", "metrics"}] == [kept, kept]


@pytest.mark.parametrize("step", [True, -1, 1.5, _NAN, "1", 2**63, np.bool_(True), [1]])
def test_other_steps_are_refused_like_a_bad_value(live: LiveRuns, step: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What is no step costs the value and a warning, not the training."""
    run = live.start()
    run.log_metric_at("k", step, 1.0)
    run.log_metrics({"k": 1.0}, step=step)
    assert run.metric_keys() == []
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    "key",
    ["timing(s)/gen", "val/AR@100", "a//b", "a b", "perte_é", "1abc", "../x", "k" * 300, "損失", "\x00", "e\ud800"],
)
def test_keys_are_any_non_empty_strings(live: LiveRuns, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """Case 26: names that instruments refuse stay exactly as they are in file and storage, and name no path."""
    run = live.start()
    run.log_metric(key, 1.5)
    run.log_metrics({key: 2.5})
    run.log_metric_at(key, 9, 3.5)
    clean = key.replace("\ud800", "\ufffd")
    assert [entry[0] for entry in _metric_lines(live, run)] == [clean, clean]
    assert _points(live, run, key) == [(0, 1.5), (1, 2.5), (9, 3.5)]
    assert caplog.records == []
    assert [path.name for path in live.trace_dir.parent.iterdir()] == ["runs"]


@pytest.mark.parametrize("key", ["", None, 3, b"k", ("a",)])
def test_other_keys_are_one_warning(live: LiveRuns, key: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Case 26: an empty name, and what is no string, is refused with one warning."""
    run = live.start()
    run.log_metric(key, 1.0)
    run.log_metric_at(key, 1, 1.0)
    run.log_metrics({key: 1.0})
    assert run.metric_keys() == []
    assert len(caplog.records) == 1


@pytest.mark.parametrize("values", [None, 3, "abc", [("a", 1.0)], object()])
def test_log_metrics_of_no_mapping_is_refused(live: LiveRuns, values: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What is no mapping costs a warning, not the training."""
    run = live.start()
    run.log_metrics(values)
    assert len(caplog.records) == 1


class _Hostile:
    """An object whose every method raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attributes")


_ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
    st.decimals(),
    st.lists(st.integers(), max_size=2),
    st.builds(_Hostile),
    st.just(float),
)


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_recording_raises_nothing(live: LiveRuns, data: st.DataObject) -> None:
    """Whatever a program logs, under whatever name and step, no call raises and every line stays strict JSON."""
    run = runspan.current_run() or live.start()
    key, step, value = data.draw(_ANYTHING), data.draw(_ANYTHING), data.draw(_ANYTHING)
    run.log_metric(key, value)
    run.log_metric_at(key, step, value)
    try:
        mapping = {key: value}
    except TypeError:
        mapping = {}
    run.log_metrics(mapping, step=step)
    run.log_metrics(value)
    run.count(key, value)
    run.observe(key, value)
    run.log_params(value)
    run.log_params({str(index): each for index, each in enumerate((key, step, value))})
    run.set_tags(value)
    run.event("event", value=value)
    with run.span("span", value=value) as span:
        span.set_attribute("later", value)
    with run.step(step, samples=value, tokens=value), run.phase(key):
        pass
    assert live.lines(run)[0]["kind"] == "meta"


def test_strict_raises_what_would_be_a_warning(live: LiveRuns) -> None:
    """strict: bad values, keys and steps raise ConfigError and move nothing."""
    run = live.start(strict=True)
    with pytest.raises(ConfigError, match=r"'k'.*no metric value"):
        run.log_metric("k", "text")
    with pytest.raises(ConfigError, match="no step"):
        run.log_metric_at("k", -1, 1.0)
    with pytest.raises(ConfigError, match="no metric key"):
        run.log_metric("", 1.0)
    with pytest.raises(ConfigError, match="no mapping"):
        run.log_metrics(None)  # type: ignore[arg-type] # what the test is about
    assert run.current_step("k") == 0


def test_non_finite_values_come_back_the_same_from_everywhere(live: LiveRuns, tmp_path: Path) -> None:
    """Case 17: 1.0, NaN, +inf, -inf are the same four in memory, in SQLite and in the file."""
    values = [1.0, _NAN, _INF, -_INF]
    for storage in (live.storage, SqlStorage(tmp_path / "x.db")):
        run = live.start(storage=storage)
        for value in values:
            run.log_metric("loss", value)
        run.finish()
        stored = [point.value for point in storage.get_metrics(run.id, "loss")]
        assert [str(value) for value in stored] == ["1.0", "nan", "inf", "-inf"]
        assert [value for _, _, value in _metric_lines(live, run)] == [1.0, "NaN", "Infinity", "-Infinity"]
        storage.close()


def test_summary_keeps_last_min_max_and_count(live: LiveRuns) -> None:
    """The summary covers every point, non-finite ones in last and count alone, and is stored at the end."""
    run = live.start()
    for value in (3.0, 1.0, 2.0, _INF, _NAN):
        run.log_metric("loss", value)
    run.log_metric_at("other", 7, 4)
    summary = run.summary
    assert list(summary) == ["loss", "other"]
    loss = summary["loss"]
    assert (loss.min, loss.max, loss.count) == (1.0, 3.0, 5)
    assert math.isnan(loss.last)
    run.finish()
    assert run.summary["other"].last == 4.0
    assert live.storage.get_run(run.id).summary["loss"].count == 5


def test_recent_metrics_and_subscribe_show_the_own_rank(live: LiveRuns) -> None:
    """A live Run is a DashboardSource of its own rank: the last points of each key, and callbacks in order."""
    run = live.start()
    seen: list[tuple[str, int, float]] = []
    arrived = threading.Event()

    def callback(point: runspan.MetricPoint) -> None:
        seen.append((point.key, point.step, point.value))
        if len(seen) == 3:
            arrived.set()

    run.subscribe(callback)
    for value in (0.5, 0.25, _NAN):
        run.log_metric("loss", value)
    recent = run.recent_metrics(2)["loss"]
    assert recent.values[0][1] == 0.25
    assert recent.latest is not None
    assert math.isnan(recent.latest)
    assert run.recent_metrics(0)["loss"].is_empty
    with pytest.raises(ValueError, match="-1"):
        run.recent_metrics(-1)
    assert isinstance(run, runspan.DashboardSource)
    assert run.status() == "running"
    assert run.resource_usage().memory_total
    assert arrived.wait(10)
    assert [(key, step) for key, step, _ in seen] == [("loss", 0), ("loss", 1), ("loss", 2)]
    run.finish()
    assert run.status() == "success"


def test_a_subscriber_gets_the_last_points_of_a_short_run(live: LiveRuns) -> None:
    """Points that were logged right before finish reach a subscriber, unless it is slow."""
    run = live.start()
    seen: list[int] = []
    run.subscribe(lambda point: seen.append(point.step))
    for _ in range(20):
        run.log_metric("loss", 1.0)
    run.finish()
    assert seen == list(range(20))


def test_the_logged_object_is_not_kept(live: LiveRuns) -> None:
    """Case 30: a logged tensor dies when the program lets go of it; so does what was refused."""

    class Tensor:
        size = 1

        def __init__(self, item: object) -> None:
            self._item = item

        def item(self) -> object:
            return self._item

    run = live.start()
    tensors = [Tensor(1.5), Tensor("no number")]
    references = [weakref.ref(tensor) for tensor in tensors]
    for tensor in tensors:
        run.log_metric("loss", tensor)
        run.log_metrics({"several": tensor})
    del tensor, tensors
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert run.metric_keys() == ["loss", "several"]


def test_logging_after_finish_is_a_counted_warning(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """Case 30: late calls change neither file nor storage, and are told of once a kind of call."""
    run = live.start()
    run.log_metric("loss", 1.0)
    run.finish()
    before = live.lines(run)
    for _ in range(3):
        run.log_metric("loss", 2.0)
        run.log_metric_at("loss", 9, 2.0)
        run.log_metrics({"loss": 2.0})
        run.log_metric("loss", np.float32(2.0))
    assert live.lines(run) == before
    assert _points(live, run) == [(0, 1.0)]
    assert run.current_step("loss") == 1
    (record,) = caplog.records
    assert f"cannot log to finished run {run.id}" in record.getMessage()
    assert run._session.dropped()["metric", "after_finish"] == 12


def test_every_late_recording_member_is_refused_and_strict_raises(live: LiveRuns, tmp_path: Path) -> None:
    """After finish each recording member does nothing, or raises InvalidStateError when strict."""
    (tmp_path / "file").write_text("x")

    def use_all(run: runspan.Run) -> list[Any]:
        return [
            lambda: run.log_metric("k", 1.0),
            lambda: run.log_metric_at("k", 1, 1.0),
            lambda: run.log_metrics({"k": 1.0}),
            lambda: run.log_params({"a": 1}),
            lambda: run.log_param("a", 1),
            lambda: run.set_tag("a", "b"),
            lambda: run.set_tags({"a": "b"}),
            lambda: run.log_artifact("a", tmp_path / "file"),
            lambda: run.event("e"),
            lambda: run.alert("title"),
            lambda: run.count("k"),
            lambda: run.observe("k", 1.0),
            lambda: run.span("s").__enter__(),
            lambda: run.epoch(1).__enter__(),
            lambda: run.step().__enter__(),
            lambda: run.phase("p").__enter__(),
            lambda: run.checkpoint().__enter__(),
            lambda: run.evaluate().__enter__(),
            lambda: list(run.steps([1, 2])),
        ]

    run = live.start()
    run.finish()
    before = live.lines(run)
    for call in use_all(run):
        call()
    assert live.lines(run) == before
    strict = live.start(strict=True)
    strict.finish()
    for call in use_all(strict):
        with pytest.raises(InvalidStateError, match=f"cannot log to finished run {strict.id}"):
            call()


def test_the_counter_moves_only_when_the_file_took_the_line(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that the disk refused has no step and no row: the next accepted one takes its step."""
    run = live.start()
    run.log_metric("loss", 0.0)

    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if b'"metric' in data:  # the heartbeat writes too, when it likes
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    with monkeypatch.context() as patched:
        patched.setattr("runspan.tracefile.writer.os.write", full)
        run.log_metric("loss", 1.0)
        run.log_metrics({"loss": 1.0, "new": 1.0})
        run.log_metric_at("loss", 5, 1.0)
    assert run.current_step("loss") == 1
    assert run.metric_keys() == ["loss"]
    run.log_metric("loss", 2.0)
    assert _points(live, run) == [(0, 0.0), (1, 2.0)]
    dropped = events_of(live.lines(run), "dropped", signal="file", reason="ENOSPC")
    assert sum(line["count"] for line in dropped) == 3  # in one line, or two with a heartbeat's in between


def test_without_a_file_values_are_accepted_when_queued(live: LiveRuns) -> None:
    """trace_dir None: no file, no folder; counters, summary and storage work."""
    run = live.start(trace_dir=None)
    run.log_metric("loss", 1.0)
    run.log_metrics({"loss": 2.0})
    assert run.directory is None
    assert run.current_step("loss") == 2
    assert run.summary["loss"].count == 2
    assert _points(live, run) == [(0, 1.0), (1, 2.0)]
    assert not live.trace_dir.exists()


def test_threads_share_the_counters(live: LiveRuns) -> None:
    """Many threads logging one key give each step once, in the file's order."""
    run = live.start()

    def log() -> None:
        for _ in range(200):
            run.log_metric("loss", 1.0)
            run.log_metrics({"loss": 2.0, "other": 3.0})

    threads = [threading.Thread(target=log) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = []
    for line in live.lines(run):
        if line["kind"] == "metric":
            steps.append(line["step"])
        elif line["kind"] == "metrics":
            steps.append(line["steps"]["loss"])
    assert steps == list(range(2400))
    assert [step for step, _ in _points(live, run)] == list(range(2400))


def test_points_have_the_wall_time_of_their_call(live: LiveRuns) -> None:
    """Case 30: times are unix nanoseconds, the same whatever the time zone of the process."""
    clock = FakeClock(1_700_000_000_000_000_000)
    run = live.start(clock=clock)
    run.log_metric("loss", 1.0)
    clock.advance(2.5)
    run.log_metric("loss", 1.0)
    assert [line["time_unix_nano"] for line in events_of(live.lines(run), "metric")] == [
        1_700_000_000_000_000_000,
        1_700_000_002_500_000_000,
    ]
    assert live.lines(run)[0]["timestamp"] == "2023-11-14T22:13:20.000Z"
