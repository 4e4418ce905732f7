"""What every ExperimentStorage promises, over every backend."""

from __future__ import annotations

import inspect
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from runspan import ids
from runspan.errors import ExperimentNotFoundError, InvalidStateError, RunNotFoundError, StorageError
from runspan.records import Filter, FilterOp, MetricPoint, MetricSummary, RunStatus
from runspan.storage import ArtifactRecord, ExperimentInfo, ExperimentStorage, InMemoryStorage, SqlStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.postgres import PostgresServer

SUCCESS, FAILED, CANCELLED = RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.CANCELLED
RUNNING, PENDING = RunStatus.RUNNING, RunStatus.PENDING


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ExperimentStorage]:
    """Open an empty storage of each backend."""
    opened: ExperimentStorage
    if request.param == "memory":
        opened = InMemoryStorage()
    elif request.param == "sqlite":
        opened = SqlStorage(tmp_path / "experiments.db")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        opened = SqlStorage(server.new_database())
    yield opened
    opened.close()


def new_run(storage: ExperimentStorage, run_id: str | None = None, world_size: int = 1) -> str:
    """Create a run in the experiment that all these tests use."""
    return storage.create_run(storage.create_experiment("tests"), run_id, world_size)


def points(key: str, steps: list[int], *, rank: int = 0, attempt: int = 0, value: float = 1.0) -> list[MetricPoint]:
    """Build points whose time is their step in ms."""
    return [MetricPoint(key, step, value, step * 1_000_000, rank, attempt) for step in steps]


def steps_of(found: list[MetricPoint]) -> list[int]:
    """Return the steps of points."""
    return [point.step for point in found]


def test_backend_has_the_protocols_methods_and_signatures(storage: ExperimentStorage) -> None:
    """A backend has each method of the protocol with the same parameters and defaults."""
    assert isinstance(storage, ExperimentStorage)
    for name, method in inspect.getmembers(ExperimentStorage, inspect.isfunction):
        if not name.startswith("_"):
            wanted = inspect.signature(method).parameters.values()
            actual = inspect.signature(getattr(type(storage), name)).parameters.values()
            assert [(p.name, p.kind, p.default) for p in actual] == [(p.name, p.kind, p.default) for p in wanted], name


def test_same_experiment_name_gives_the_same_derived_id(storage: ExperimentStorage) -> None:
    """An experiment is created once, its id follows from its name, and its first configuration stays."""
    first = storage.create_experiment("gpt", {"lr": 0.1})
    assert storage.create_experiment("gpt", {"lr": 0.2}) == first == ids.experiment_id("gpt")
    other = storage.create_experiment("bert")
    assert storage.list_experiments() == [ExperimentInfo(first, "gpt", {"lr": 0.1}), ExperimentInfo(other, "bert", {})]


def test_run_is_created_once_and_is_pending(storage: ExperimentStorage) -> None:
    """Creating a run again returns the same pending run, fills in what was missing and keeps what was there."""
    experiment = storage.create_experiment("e")
    assert storage.create_run(experiment, "r", 2, name="first") == "r"
    assert storage.create_run(experiment, "r", 4, name="second", group="g", trace_id="ab" * 16) == "r"
    assert storage.create_run(experiment, "r", 1) == "r"
    run = storage.get_run("r")
    assert (run.name, run.group, run.trace_id, run.world_size) == ("first", "g", "ab" * 16, 4)
    assert (run.status, run.start_time, run.end_time, run.attempts) == (PENDING, None, None, 0)
    assert run.experiment_id == experiment


def test_run_without_an_id_gets_a_new_one(storage: ExperimentStorage) -> None:
    """Two runs created without an id are two runs."""
    first, second = new_run(storage), new_run(storage)
    assert first != second
    assert {run.run_id for run in storage.list_runs()} == {first, second}


def test_run_needs_its_experiment(storage: ExperimentStorage) -> None:
    """A run of an unknown experiment, or of another one than before, is refused with its id in the message."""
    with pytest.raises(ExperimentNotFoundError, match="exp-unknown"):
        storage.create_run("exp-unknown", "r")
    storage.create_run(storage.create_experiment("a"), "r")
    with pytest.raises(InvalidStateError, match="'r' belongs to experiment"):
        storage.create_run(storage.create_experiment("b"), "r")
    with pytest.raises(ExperimentNotFoundError, match="exp-unknown"):
        storage.list_runs("exp-unknown")


def test_attempt_goes_from_running_to_a_final_status(storage: ExperimentStorage) -> None:
    """Start and completion set status, reason and times, and completing keeps span id and start time."""
    run = new_run(storage, "r")
    storage.start_run(run, time_unix_nano=100)
    storage.set_span_id(run, "aa" * 8)
    assert storage.get_run_status(run) is RUNNING
    storage.complete_run(run, CANCELLED, reason="SIGTERM", time_unix_nano=250)
    info = storage.get_run(run)
    assert (info.status, info.reason, info.start_time, info.end_time) == (CANCELLED, "SIGTERM", 100, 250)
    assert (info.span_id, info.attempts) == ("aa" * 8, 1)


def test_second_start_of_a_row_is_refused(storage: ExperimentStorage) -> None:
    """The same attempt of the same rank starts once, running or completed."""
    run = new_run(storage)
    storage.start_run(run, 0, 0)
    with pytest.raises(InvalidStateError, match="attempt 0 of rank 0 was already started"):
        storage.start_run(run, 0, 0)
    storage.complete_run(run, SUCCESS)
    with pytest.raises(InvalidStateError, match="already started"):
        storage.start_run(run, 0, 0)


def test_only_a_running_row_is_completed_and_only_to_a_final_status(storage: ExperimentStorage) -> None:
    """Completing what never started or has ended, or to a status that is no end, is refused."""
    run = new_run(storage)
    with pytest.raises(InvalidStateError, match="never started"):
        storage.complete_run(run, SUCCESS)
    storage.start_run(run)
    for status in (PENDING, RUNNING):
        with pytest.raises(InvalidStateError, match=str(status)):
            storage.complete_run(run, status)
    storage.complete_run(run, FAILED)
    with pytest.raises(InvalidStateError, match="already failed"):
        storage.complete_run(run, SUCCESS)
    assert storage.get_run_status(run) is FAILED


def test_new_attempt_makes_an_ended_run_running_again(storage: ExperimentStorage) -> None:
    """A run becomes running from any status when a rank starts a new attempt, and ends with that attempt's status."""
    run = new_run(storage)
    storage.start_run(run, time_unix_nano=1)
    storage.complete_run(run, FAILED, reason="boom", time_unix_nano=2)
    storage.start_run(run, attempt=1, time_unix_nano=3)
    info = storage.get_run(run)
    assert (info.status, info.reason, info.end_time, info.attempts) == (RUNNING, None, None, 2)
    storage.complete_run(run, SUCCESS, attempt=1, time_unix_nano=4)
    info = storage.get_run(run)
    assert (info.status, info.reason, info.start_time, info.end_time) == (SUCCESS, None, 1, 4)
    assert storage.attempts(run, 0) == [0, 1]
    assert storage.attempts(run, 1) == []


def test_run_of_several_ranks_ends_with_the_worst_status(storage: ExperimentStorage) -> None:
    """Case 23: a run of three ranks is running until each has ended its newest attempt, then has the worst status."""
    run = new_run(storage, world_size=3)
    for rank in range(3):
        storage.start_run(run, rank, time_unix_nano=10 + rank)
    storage.complete_run(run, SUCCESS, 0, time_unix_nano=20)
    storage.complete_run(run, FAILED, 1, reason="rank 1 broke", time_unix_nano=21)
    assert storage.get_run_status(run) is RUNNING
    storage.complete_run(run, CANCELLED, 2, time_unix_nano=22)
    info = storage.get_run(run)
    assert (info.status, info.reason, info.start_time, info.end_time) == (FAILED, "rank 1 broke", 10, 22)
    storage.start_run(run, 1, 1)
    assert storage.get_run_status(run) is RUNNING
    storage.complete_run(run, SUCCESS, 1, 1)
    assert storage.get_run_status(run) is CANCELLED


def test_where_only_rank_0_writes_its_status_is_the_runs(storage: ExperimentStorage) -> None:
    """A run of 64 ranks of which only rank 0 has rows ends with rank 0, until others are imported."""
    run = new_run(storage, world_size=64)
    storage.start_run(run)
    storage.complete_run(run, SUCCESS)
    assert storage.get_run_status(run) is SUCCESS
    storage.start_run(run, 1)
    storage.complete_run(run, FAILED, 1)
    assert storage.get_run_status(run) is RUNNING


def test_a_grown_world_size_reopens_the_question(storage: ExperimentStorage) -> None:
    """Ranks that a larger world size adds must end too."""
    run = new_run(storage, "r", world_size=2)
    for rank in range(2):
        storage.start_run(run, rank)
        storage.complete_run(run, SUCCESS, rank)
    assert storage.get_run_status(run) is SUCCESS
    new_run(storage, "r", world_size=3)
    assert storage.get_run_status(run) is RUNNING


def test_points_come_back_by_step_with_ties_in_insertion_order(storage: ExperimentStorage) -> None:
    """Steps may repeat and go back: all points stay, sorted by step, equal steps as they were inserted."""
    run = new_run(storage)
    logged = [MetricPoint("m", step, value, 7) for step, value in [(5, 1.0), (0, 2.0), (5, 0.5), (3, 4.0), (0, 1.0)]]
    storage.log_metrics(run, logged[:3])
    storage.log_metrics(run, logged[3:])
    found = [(point.step, point.value) for point in storage.get_metrics(run, "m")]
    assert found == [(0, 2.0), (0, 1.0), (3, 4.0), (5, 1.0), (5, 0.5)]


def test_log_metric_stores_one_point_of_rank_0(storage: ExperimentStorage) -> None:
    """log_metric appends a point with the present time, for rank 0 and attempt 0."""
    run = new_run(storage)
    storage.log_metric(run, "m", 3, 2.5)
    (point,) = storage.get_metrics(run, "m")
    assert (point.key, point.step, point.value, point.rank, point.attempt) == ("m", 3, 2.5, 0, 0)
    assert point.time_unix_nano > 1_600_000_000 * 10**9


def test_unknown_key_is_empty_and_empty_batch_changes_nothing(storage: ExperimentStorage) -> None:
    """A key that was never logged has no points, in every question about it."""
    run = new_run(storage)
    storage.log_metrics(run, [])
    assert storage.get_metrics(run, "nope") == []
    assert storage.sample_metrics(run, "nope", 5) == []
    assert storage.metric_series(run, "nope") == []
    assert storage.get_all_metrics(run) == {}
    assert storage.recent_metrics(run, 5) == {}
    assert storage.latest_metrics(run) == {}
    assert storage.metric_keys(run) == []
    assert storage.next_steps(run, 0) == {}


UNKNOWN_RUN_CALLS: dict[str, Callable[[ExperimentStorage], object]] = {
    "start_run": lambda storage: storage.start_run("gone"),
    "complete_run": lambda storage: storage.complete_run("gone", SUCCESS),
    "log_metric": lambda storage: storage.log_metric("gone", "m", 0, 1.0),
    "log_metrics": lambda storage: storage.log_metrics("gone", []),
    "get_metrics": lambda storage: storage.get_metrics("gone", "m"),
    "get_all_metrics": lambda storage: storage.get_all_metrics("gone"),
    "sample_metrics": lambda storage: storage.sample_metrics("gone", "m", 1),
    "recent_metrics": lambda storage: storage.recent_metrics("gone", 1),
    "latest_metrics": lambda storage: storage.latest_metrics("gone"),
    "metric_keys": lambda storage: storage.metric_keys("gone"),
    "metric_series": lambda storage: storage.metric_series("gone", "m"),
    "set_summary": lambda storage: storage.set_summary("gone", {}),
    "set_counts": lambda storage: storage.set_counts("gone", {}),
    "log_params": lambda storage: storage.log_params("gone", {}),
    "get_params": lambda storage: storage.get_params("gone"),
    "set_tags": lambda storage: storage.set_tags("gone", {}),
    "log_artifact": lambda storage: storage.log_artifact("gone", ArtifactRecord("a", "sha256-0", 1)),
    "list_artifacts": lambda storage: storage.list_artifacts("gone"),
    "get_run_status": lambda storage: storage.get_run_status("gone"),
    "set_span_id": lambda storage: storage.set_span_id("gone", "00"),
    "get_span_id": lambda storage: storage.get_span_id("gone"),
    "get_run": lambda storage: storage.get_run("gone"),
    "attempts": lambda storage: storage.attempts("gone", 0),
    "next_steps": lambda storage: storage.next_steps("gone", 0),
    "delete_run": lambda storage: storage.delete_run("gone"),
}


def test_unknown_run_is_named_by_every_method(storage: ExperimentStorage) -> None:
    """Every method that takes a run id raises RunNotFoundError naming it when there is no such run."""
    new_run(storage)
    for call in UNKNOWN_RUN_CALLS.values():
        with pytest.raises(RunNotFoundError, match="'gone'"):
            call(storage)


def test_nonfinite_values_come_back(storage: ExperimentStorage) -> None:
    """Case 17: 1.0, NaN, +inf and -inf are the same four values when read back."""
    run = new_run(storage)
    values = [1.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308]
    storage.log_metrics(run, [MetricPoint("m", step, value, 0) for step, value in enumerate(values)])
    found = [point.value for point in storage.get_metrics(run, "m")]
    assert math.isnan(found[1])
    assert found[:1] + found[2:] == values[:1] + values[2:]


def test_integer_values_become_floats(storage: ExperimentStorage) -> None:
    """Values are stored as 64-bit floats, also integers that no database integer holds."""
    run = new_run(storage)
    storage.log_metrics(run, [MetricPoint("m", 0, 2**64 - 1, 0), MetricPoint("m", 1, 3, 0)])
    found = [point.value for point in storage.get_metrics(run, "m")]
    assert found == [float(2**64 - 1), 3.0]
    assert all(type(value) is float for value in found)


def test_a_point_that_does_not_fit_rejects_its_whole_batch(storage: ExperimentStorage) -> None:
    """log_metrics stores all points or none: a step beyond 64 bits is a StorageError and nothing is stored."""
    run = new_run(storage)
    with pytest.raises(StorageError):
        storage.log_metrics(run, [*points("m", [1, 2]), MetricPoint("m", 2**63, 1.0, 0)])
    assert storage.get_metrics(run, "m") == []
    storage.log_metrics(run, [MetricPoint("m", 2**63 - 1, 1.0, 2**63 - 1)])
    assert steps_of(storage.get_metrics(run, "m")) == [2**63 - 1]


@pytest.mark.parametrize("key", [None, 3, b"m", ["m"]])
def test_a_key_that_is_no_text_rejects_its_whole_batch(storage: ExperimentStorage, key: Any) -> None:
    """The StorageError shows the key and what it takes, and nothing is stored."""
    run = new_run(storage)
    with pytest.raises(StorageError, match=r"key=.* takes a str"):
        storage.log_metrics(run, [*points("m", [1, 2]), MetricPoint(key, 3, 1.0, 0)])
    assert storage.metric_keys(run) == []


def test_resume_from_an_older_checkpoint_supersedes(storage: ExperimentStorage) -> None:
    """Case 19: after steps 0-212 and a resume at 200 to 300, each step has one value, 200 on from attempt 1."""
    run = new_run(storage)
    storage.log_metrics(run, points("loss", list(range(213)), value=1.0))
    storage.log_metrics(run, points("loss", list(range(200, 301)), attempt=1, value=2.0))
    found = storage.get_metrics(run, "loss")
    assert steps_of(found) == list(range(301))
    assert {point.attempt for point in found[:200]} == {0}
    assert {point.attempt for point in found[200:]} == {1}
    assert steps_of(storage.get_metrics(run, "loss", attempt=0)) == list(range(213))
    assert steps_of(storage.get_metrics(run, "loss", attempt=1)) == list(range(200, 301))
    assert storage.metric_series(run, "loss") == [(0, 0), (0, 1)]


def test_superseding_is_per_rank_and_key(storage: ExperimentStorage) -> None:
    """A rank's new attempt hides nothing of other ranks or keys, and a third attempt hides both earlier ones."""
    run = new_run(storage, world_size=2)
    storage.log_metrics(run, points("a", [0, 1, 2, 3]) + points("a", [0, 1, 2, 3], rank=1) + points("b", [0, 1, 2]))
    storage.log_metrics(run, points("a", [2, 3, 4], attempt=1))
    storage.log_metrics(run, points("a", [1], attempt=2))
    kept = [(point.step, point.rank, point.attempt) for point in storage.get_metrics(run, "a")]
    assert kept == [(0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 2), (2, 1, 0), (3, 1, 0)]
    assert steps_of(storage.get_metrics(run, "b")) == [0, 1, 2]
    assert steps_of(storage.get_metrics(run, "a", rank=1)) == [0, 1, 2, 3]
    assert steps_of(storage.sample_metrics(run, "a", 2, rank=0)) == [0, 1]
    assert steps_of(storage.recent_metrics(run, 9)["a"]) == [0, 1]


def test_ranks_of_one_run_lose_nothing(storage: ExperimentStorage) -> None:
    """Case 22: four ranks that create one run at the same time and log 100 steps each make one run with 400 points."""
    barrier = threading.Barrier(4)

    def rank_main(rank: int) -> None:
        barrier.wait()
        run = new_run(storage, "shared", world_size=4)
        storage.start_run(run, rank)
        for step in range(100):
            storage.log_metrics(run, points("loss", [step], rank=rank))
        storage.complete_run(run, SUCCESS, rank)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(rank_main, range(4)))
    assert [run.run_id for run in storage.list_runs()] == ["shared"]
    found = storage.get_metrics("shared", "loss")
    assert sorted((point.rank, point.step) for point in found) == [(r, s) for r in range(4) for s in range(100)]
    assert storage.get_run_status("shared") is SUCCESS


AWKWARD = [
    "timing(s)/gen",
    "val/AR@100",
    "a//b",
    "",
    " ",
    "perte_é",
    "损失",
    "\U0001f525",
    "../x",
    "%s'\";--",
    "k" * 300,
]
AWKWARD += ["nul\0inside", "\U0010ffff0", "x" * 20_000, "line\nbreak", "a", "A"]


def test_any_string_is_a_key(storage: ExperimentStorage) -> None:
    """Case 26: keys with any characters and of any length are kept exactly and stay apart."""
    run = new_run(storage)
    storage.log_metrics(run, [MetricPoint(key, index, float(index), 0) for index, key in enumerate(AWKWARD)])
    assert storage.metric_keys(run) == AWKWARD
    for index, key in enumerate(AWKWARD):
        assert storage.get_metrics(run, key) == [MetricPoint(key, index, float(index), 0)]
    assert list(storage.latest_metrics(run)) == AWKWARD
    texts = {key: key for key in AWKWARD}
    storage.log_params(run, texts)
    storage.set_tags(run, texts)
    info = storage.get_run(run)
    assert (info.params, info.tags) == (texts, texts)


def test_lone_surrogates_become_replacement_characters(storage: ExperimentStorage) -> None:
    """A key that UTF-8 cannot encode is stored as the trace file writes it, and found under either spelling."""
    run = new_run(storage, "run-\ud800")
    storage.log_metrics(run, [MetricPoint("bad\udc80", 0, 1.0, 0)])
    storage.set_tags(run, {"t\udc80": "v\udc80"})
    assert storage.metric_keys(run) == ["bad\ufffd"]
    assert len(storage.get_metrics("run-\ud800", "bad\udc80")) == len(storage.get_metrics(run, "bad\ufffd")) == 1
    assert storage.get_run(run).tags == {"t\ufffd": "v\ufffd"}


def test_sample_keeps_first_and_last_evenly_spread(storage: ExperimentStorage) -> None:
    """A sample of n points has n of them, the first and the last included, with gaps that differ by at most one."""
    run = new_run(storage)
    storage.log_metrics(run, points("m", list(range(1000))))
    for limit in (2, 3, 7, 320, 999):
        steps = steps_of(storage.sample_metrics(run, "m", limit))
        gaps = {after - before for before, after in pairwise(steps)}
        assert (len(steps), steps[0], steps[-1]) == (limit, 0, 999)
        assert max(gaps) - min(gaps) <= 1
    for limit in (1000, 5000):
        assert steps_of(storage.sample_metrics(run, "m", limit)) == list(range(1000))
    assert steps_of(storage.sample_metrics(run, "m", 1)) == [999]
    assert storage.sample_metrics(run, "m", 0) == []
    with pytest.raises(ValueError, match="-1"):
        storage.sample_metrics(run, "m", -1)


def test_recent_metrics_are_the_newest_of_one_rank(storage: ExperimentStorage) -> None:
    """The newest points of each key come oldest first, by time even where steps went back; other ranks stay out."""
    run = new_run(storage)
    storage.log_metrics(run, [*points("a", [0, 1, 2, 3]), MetricPoint("b", 9, 1.0, 1), MetricPoint("b", 0, 2.0, 2)])
    storage.log_metrics(run, points("a", [7], rank=1) + points("c", [1], rank=1))
    recent = storage.recent_metrics(run, 2)
    assert {key: steps_of(found) for key, found in recent.items()} == {"a": [2, 3], "b": [9, 0]}
    assert list(recent) == ["a", "b"]
    assert storage.latest_metrics(run)["b"].value == 2.0
    assert storage.recent_metrics(run, 0) == {"a": [], "b": []}
    assert list(storage.recent_metrics(run, 1, rank=1)) == ["a", "c"]
    with pytest.raises(ValueError, match="-1"):
        storage.recent_metrics(run, -1)


def test_late_points_do_not_pass_for_the_newest(storage: ExperimentStorage) -> None:
    """A point that is inserted late, as an import does, takes its place by time."""
    run = new_run(storage)
    storage.log_metrics(run, points("m", [0, 1, 3]))
    storage.log_metrics(run, points("m", [2]))
    assert storage.latest_metrics(run)["m"].step == 3
    assert steps_of(storage.recent_metrics(run, 3)["m"]) == [1, 2, 3]


def test_all_metrics_in_one_call(storage: ExperimentStorage) -> None:
    """get_all_metrics returns what get_metrics returns for each key, in first-logged order."""
    run = new_run(storage, world_size=2)
    storage.log_metrics(run, points("z", [3, 1]) + points("a", [0], rank=1) + points("z", [2], attempt=1))
    everything = storage.get_all_metrics(run)
    assert list(everything) == ["z", "a"]
    assert everything == {key: storage.get_metrics(run, key) for key in ("z", "a")}
    assert list(storage.get_all_metrics(run, ["a", "unknown"])) == ["a"]
    assert storage.get_all_metrics(run, rank=0, attempt=0) == {"z": points("z", [1, 3])}


def test_next_steps_go_on_after_the_highest(storage: ExperimentStorage) -> None:
    """Per key of a rank, the next step is one beyond the highest that any attempt stored."""
    run = new_run(storage)
    storage.log_metrics(run, points("a", [0, 9, 4]) + points("b", [0]) + points("a", [2], attempt=1))
    storage.log_metrics(run, points("a", [50], rank=1))
    assert storage.next_steps(run, 0) == {"a": 10, "b": 1}
    assert storage.next_steps(run, 1) == {"a": 51}
    assert storage.next_steps(run, 2) == {}


def test_params_keep_their_types(storage: ExperimentStorage) -> None:
    """Case 10: parameters come back with value and type, integers exactly, however large."""
    run = new_run(storage)
    params: dict[str, Any] = {
        "text": "a",
        "seed": 2**53 + 1,
        "big": 2**63 - 1,
        "bigger": 2**64 - 1,
        "one": 1,
        "float": 1.0,
        "flag": True,
        "list": [1, 2.5, "x", None, [False]],
        "dict": {"a": {"b": [1]}},
        "inf": math.inf,
        "long": "y" * 50_000,
    }
    storage.log_params(run, params)
    found = storage.get_params(run)
    assert found == params
    assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in params.items()}
    storage.log_params(run, {"nan": math.nan})
    assert math.isnan(storage.get_params(run)["nan"])


def test_last_param_wins_and_rank_0_wins(storage: ExperimentStorage) -> None:
    """A later value of a rank replaces its earlier one, and rank 0's value holds over the other ranks'."""
    run = new_run(storage, world_size=3)
    storage.log_params(run, {"lr": 0.5, "only2": 2}, rank=2)
    storage.log_params(run, {"lr": 0.1})
    storage.log_params(run, {"lr": 0.2, "bs": 8})
    storage.log_params(run, {"lr": 0.9, "only2": 1}, rank=1)
    assert storage.get_params(run) == storage.get_run(run).params == {"lr": 0.2, "bs": 8, "only2": 1}
    storage.set_tags(run, {"host": "b"}, rank=1)
    storage.set_tags(run, {"host": "a"})
    assert storage.get_run(run).tags == {"host": "a"}


def test_param_that_json_does_not_have_is_refused_whole(storage: ExperimentStorage) -> None:
    """A parameter of a type that cannot be stored is a StorageError, and none of the call's parameters is stored."""
    run = new_run(storage)
    with pytest.raises(StorageError, match="cannot be stored"):
        storage.log_params(run, {"fine": 1, "odd": object()})
    assert storage.get_params(run) == {}


def test_returned_containers_are_copies(storage: ExperimentStorage) -> None:
    """Changing what was passed in or given out changes nothing in the storage."""
    config: dict[str, Any] = {"a": [1]}
    experiment = storage.create_experiment("copies", config)
    run = storage.create_run(experiment, "r")
    nested: dict[str, Any] = {"list": [1]}
    storage.log_params(run, nested)
    storage.log_metrics(run, points("m", [0]))
    nested["list"].append(2)
    config["a"].append(2)
    storage.get_params(run)["list"].append(3)
    storage.get_run(run).params["list"].append(4)
    storage.get_run(run).tags["x"] = "y"
    storage.list_experiments()[0].config["a"].append(3)
    storage.get_metrics(run, "m").clear()
    assert storage.get_run(run).params == {"list": [1]}
    assert storage.get_run(run).tags == {}
    assert storage.list_experiments()[0].config == {"a": [1]}
    assert len(storage.get_metrics(run, "m")) == 1


def test_summaries_replace_and_rank_0_wins(storage: ExperimentStorage) -> None:
    """A key's summary is replaced as a whole; where several ranks have it, rank 0's is shown."""
    run = new_run(storage)
    storage.set_summary(run, {"a": MetricSummary(9.0, 9.0, 9.0, 1), "b": MetricSummary(1.0, 1.0, 1.0, 1)}, rank=1)
    storage.set_summary(run, {"a": MetricSummary(1.0, 1.0, 1.0, 1)})
    storage.set_summary(run, {"a": MetricSummary(math.inf, None, None, 3)})
    expected = {"a": MetricSummary(math.inf, None, None, 3), "b": MetricSummary(1.0, 1.0, 1.0, 1)}
    assert storage.get_run(run).summary == expected


def test_counts_are_totals_summed_over_ranks_and_attempts(storage: ExperimentStorage) -> None:
    """Case 53: tokens 1,000 before a kill and 500 after the resume are 1,500, written once or twice."""
    run = new_run(storage)
    storage.set_counts(run, {"tokens": 900, "steps": 10})
    storage.set_counts(run, {"tokens": 1000})
    storage.set_counts(run, {"tokens": 500}, attempt=1)
    storage.set_counts(run, {"tokens": 500}, attempt=1)
    storage.set_counts(run, {"tokens": 0.5}, 1)
    assert storage.get_run(run).counts == {"tokens": 1500.5, "steps": 10}


def test_artifacts_are_listed_in_order_and_found_by_hash(storage: ExperimentStorage) -> None:
    """The same name and hash is stored once; a hash finds its first artifact in any run."""
    run, other = new_run(storage), new_run(storage)
    weights = ArtifactRecord("weights", "sha256-" + "a" * 64, 10, 3, "/runs/r/artifacts/x")
    again = ArtifactRecord("weights", "sha256-" + "b" * 64, 2**40)
    same_bytes = ArtifactRecord("copy", weights.hash, 10, None, "/elsewhere", reference=True)
    for artifact in (weights, again, weights, same_bytes):
        storage.log_artifact(run, artifact)
    storage.log_artifact(other, same_bytes)
    assert storage.list_artifacts(run) == [weights, again, same_bytes]
    assert storage.get_artifact(weights.hash) == weights
    assert storage.get_artifact("sha256-unknown") is None
    assert storage.list_artifacts(other) == [same_bytes]


def test_span_id_is_overwritten(storage: ExperimentStorage) -> None:
    """A run has no span id until one is set, and the last one set holds."""
    run = new_run(storage)
    assert storage.get_span_id(run) is None
    storage.set_span_id(run, "1" * 16)
    storage.set_span_id(run, "2" * 16)
    assert storage.get_span_id(run) == "2" * 16


def test_runs_are_listed_newest_start_first(storage: ExperimentStorage) -> None:
    """Runs come newest start first, after those that never started."""
    other = storage.create_experiment("other")
    for run_id, start in [("b", 20), ("a", 10), ("c", 30)]:
        storage.start_run(new_run(storage, run_id), time_unix_nano=start)
    new_run(storage, "pending")
    storage.start_run(storage.create_run(other, "elsewhere"), time_unix_nano=25)
    assert [run.run_id for run in storage.list_runs()] == ["pending", "c", "elsewhere", "b", "a"]
    assert [run.run_id for run in storage.list_runs(other)] == ["elsewhere"]


@pytest.fixture
def searchable(storage: ExperimentStorage) -> ExperimentStorage:
    """Store four runs that differ in all that can be searched."""
    experiment = storage.create_experiment("search")
    for index, run_id in enumerate(["r0", "r1", "r2", "r3"]):
        storage.create_run(experiment, run_id, name=f"name-{index}", group="g" if index < 2 else None)
        storage.start_run(run_id, time_unix_nano=100 + index)
    storage.log_params("r0", {"lr": 0.1, "opt": "adam", "layers": 2, "flag": True, "ids": [1, "x"]})
    storage.log_params("r1", {"lr": 1, "opt": "adamw", "layers": 12, "flag": 1})
    storage.log_params("r2", {"lr": "0.1", "opt": "sgd"})
    storage.log_params("r3", {"lr": math.nan})
    storage.set_tags("r0", {"team.name": "vision"})
    storage.set_summary("r0", {"loss": MetricSummary(0.5, 0.1, 2.0, 10)})
    storage.set_summary(
        "r1", {"loss": MetricSummary(math.nan, 0.2, 2.0, 5), "loss.min": MetricSummary(7.0, 7.0, 7.0, 1)}
    )
    storage.set_summary("r2", {"loss": MetricSummary(0.25, None, None, 1)})
    storage.complete_run("r0", SUCCESS, time_unix_nano=500)
    storage.complete_run("r1", FAILED, time_unix_nano=400)
    return storage


@pytest.mark.parametrize(
    ("field", "op", "value", "expected"),
    [
        ("status", FilterOp.EQ, "success", {"r0"}),
        ("status", FilterOp.NE, RunStatus.SUCCESS, {"r1", "r2", "r3"}),
        ("name", FilterOp.STARTS_WITH, "name-", {"r0", "r1", "r2", "r3"}),
        ("name", FilterOp.CONTAINS, "3", {"r3"}),
        ("group", FilterOp.EQ, "g", {"r0", "r1"}),
        ("group", FilterOp.NE, "g", set()),
        ("start_time", FilterOp.GE, 102, {"r2", "r3"}),
        ("end_time", FilterOp.LT, 10**18, {"r0", "r1"}),
        ("params.lr", FilterOp.EQ, 0.1, {"r0"}),
        ("params.lr", FilterOp.EQ, "0.1", {"r2"}),
        ("params.lr", FilterOp.GE, 0.1, {"r0", "r1"}),
        ("params.lr", FilterOp.NE, 0.1, {"r1"}),
        ("params.lr", FilterOp.NE, math.nan, set()),
        ("params.lr", FilterOp.EQ, math.nan, set()),
        ("params.flag", FilterOp.EQ, True, {"r0"}),
        ("params.flag", FilterOp.EQ, 1, {"r1"}),
        ("params.flag", FilterOp.GE, False, set()),
        ("params.layers", FilterOp.GT, 2, {"r1"}),
        ("params.opt", FilterOp.CONTAINS, "dam", {"r0", "r1"}),
        ("params.opt", FilterOp.STARTS_WITH, "adamw", {"r1"}),
        ("params.opt", FilterOp.LE, "adam", {"r0"}),
        ("params.ids", FilterOp.CONTAINS, 1, {"r0"}),
        ("params.ids", FilterOp.CONTAINS, True, set()),
        ("params.ids", FilterOp.EQ, [1, "x"], {"r0"}),
        ("params.missing", FilterOp.NE, "x", set()),
        ("tags.team.name", FilterOp.EQ, "vision", {"r0"}),
        ("summary.loss", FilterOp.LT, 10.0, {"r0", "r2"}),
        ("summary.loss.last", FilterOp.GT, 0.3, {"r0"}),
        ("summary.loss.min", FilterOp.GT, 0.0, {"r0", "r1"}),
        ("summary.loss.min", FilterOp.EQ, 7.0, {"r1"}),
        ("summary.loss.min.max", FilterOp.EQ, 7.0, {"r1"}),
        ("summary.loss.count", FilterOp.GE, 5, {"r0", "r1"}),
    ],
)
def test_search_filters(
    searchable: ExperimentStorage, field: str, op: FilterOp, value: object, expected: set[str]
) -> None:
    """A filter matches only runs that have the field with a value of the same type; NaN matches nothing."""
    found = searchable.search_runs([Filter(field, op, value)])
    assert {run.run_id for run in found} == expected


def test_search_ands_orders_and_limits(searchable: ExperimentStorage) -> None:
    """Filters are ANDed; runs without the order field or with NaN come last both ways, newest first among equals."""
    both = [Filter("params.lr", FilterOp.GT, 0), Filter("status", FilterOp.EQ, "failed")]
    assert [run.run_id for run in searchable.search_runs(both)] == ["r1"]
    order = {
        None: ["r3", "r2", "r1", "r0"],
        "summary.loss": ["r2", "r0", "r3", "r1"],
        "-summary.loss": ["r0", "r2", "r3", "r1"],
        "group": ["r1", "r0", "r3", "r2"],
        "-start_time": ["r3", "r2", "r1", "r0"],
        "end_time": ["r1", "r0", "r3", "r2"],
        "params.lr": ["r0", "r1", "r2", "r3"],
    }
    for order_by, expected in order.items():
        assert [run.run_id for run in searchable.search_runs(order_by=order_by)] == expected, order_by
    assert [run.run_id for run in searchable.search_runs(order_by="summary.loss", limit=1)] == ["r2"]
    assert searchable.search_runs(limit=0) == []


def test_search_names_an_unknown_field(searchable: ExperimentStorage) -> None:
    """An unknown field, an unknown operator and a negative limit are errors, not empty answers."""
    for field in ("lr", "params.", "parms.lr"):
        with pytest.raises(ValueError, match=f"unknown field '{field}'"):
            searchable.search_runs([Filter(field, FilterOp.EQ, 1)])
        with pytest.raises(ValueError, match=f"unknown field '{field}'"):
            searchable.search_runs(order_by=f"-{field}")
    unknown: Any = "~"
    with pytest.raises(ValueError, match="unknown operator '~': use eq, ne"):
        searchable.search_runs([Filter("params.lr", unknown, 1)])
    with pytest.raises(ValueError, match="limit"):
        searchable.search_runs(limit=-1)


def test_deleted_run_is_gone_and_its_id_is_free(storage: ExperimentStorage) -> None:
    """Deleting takes everything of a run and nothing of another, and a new run of that id starts empty."""
    run, other = new_run(storage, "r"), new_run(storage, "other")
    for name in (run, other):
        storage.start_run(name)
        storage.log_metrics(name, points("m", [0, 1]))
        storage.log_params(name, {"p": 1})
        storage.log_artifact(name, ArtifactRecord("a", f"sha256-{name}", 1))
    storage.delete_run(run)
    assert [info.run_id for info in storage.list_runs()] == ["other"]
    assert storage.get_artifact("sha256-r") is None
    assert len(storage.get_metrics(other, "m")) == 2
    new_run(storage, "r")
    storage.start_run(run)
    storage.log_metrics(run, points("m", [5]))
    assert steps_of(storage.get_metrics(run, "m")) == [5]
    assert (storage.get_params(run), storage.list_artifacts(run)) == ({}, [])


def test_threads_share_a_storage(storage: ExperimentStorage) -> None:
    """Eight threads that write and read at once lose no point and see no error."""
    run = new_run(storage)

    def write(thread: int) -> None:
        for step in range(50):
            storage.log_metrics(run, points(f"t{thread % 3}", [step], rank=thread))
            storage.get_metrics(run, "t0")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert sum(len(found) for found in storage.get_all_metrics(run).values()) == 400


def test_closing_twice_is_harmless(storage: ExperimentStorage) -> None:
    """A storage may be closed more than once."""
    storage.close()
    storage.close()
