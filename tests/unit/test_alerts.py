from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from runspan.alerts import (
    BUILT_IN_RULES,
    Alert,
    AlertRule,
    AlertView,
    AlertWatch,
    DiskNearlyFull,
    LossSpike,
    MetricLook,
    NonfiniteMetric,
    StalledStep,
    StragglingRank,
    ThroughputDrop,
)
from runspan.config import ALERT_RULES
from runspan.errors import ConfigError
from runspan.records import AlertLevel
from runspan.tracefile.steptimes import SlowRank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_GIB = 1 << 30


class _Watched:
    """Asks one rule look after look, and returns what fires."""

    def __init__(self, rule: str | AlertRule) -> None:
        self.fired: list[Alert] = []
        self._watch = AlertWatch([rule], self.fired.append)
        self._values: dict[str, list[float]] = {}

    def look(self, **fields: Any) -> list[str]:
        """Return the titles of the alerts of a look at these fields."""
        self.fired.clear()
        self._watch.look(AlertView(**fields))
        return [alert.title for alert in self.fired]

    def log(self, *values: float, key: str = "loss") -> list[str]:
        """Return the titles of the alerts of a look after these values were logged."""
        series = self._values.setdefault(key, [])
        series.extend(values)
        bad = sum(not math.isfinite(value) for value in values)
        metric = MetricLook(series[-1], len(series), len(values), bad)
        return self.look(metrics={key: metric} if values else {}, recent=self._recent)

    def _recent(self, key: str, limit: int) -> Sequence[float]:
        return self._values.get(key, [])[-limit:]


def test_the_configuration_knows_the_built_in_rules() -> None:
    """The names that alert_rules takes are those of the rules, in the same order."""
    assert tuple(BUILT_IN_RULES) == ALERT_RULES


def test_a_nonfinite_metric_fires_once_and_again_after_it_was_finite() -> None:
    """NaN fires; so does infinity; more of them do not until a hundred values in a row were finite."""
    watched = _Watched("nonfinite_metric")
    assert watched.log(1.0, 2.0) == []
    assert watched.log(3.0, math.nan, 4.0) == ["loss is NaN"]
    assert watched.fired[0].level is AlertLevel.ERROR
    assert watched.log(math.inf) == []
    assert watched.log(*[1.0] * 99) == []
    assert watched.log(math.nan) == []
    assert watched.log() == []
    assert watched.log(*[1.0] * 100) == []
    assert watched.log(-math.inf) == ["loss is -Infinity"]


def test_each_metric_is_a_condition_of_its_own() -> None:
    """A second key fires while the first one's alert is active; what is no loss is a warning."""
    watched = _Watched(NonfiniteMetric())
    assert watched.log(math.nan, key="loss") == ["loss is NaN"]
    assert watched.log(math.inf, key="grad_norm") == ["grad_norm is Infinity"]
    assert watched.fired[0].level is AlertLevel.WARNING


def test_a_loss_spike_fires_once_and_again_after_the_loss_came_down() -> None:
    """Five values far above the usual ones fire once; back below twice the usual and up again fires again."""
    watched = _Watched("loss_spike")
    assert watched.log(*[1.0, 1.1] * 50) == []
    assert watched.log(2.9, 2.9, 2.9, 2.9, 2.9) == []
    assert watched.log(4.0, 4.0) == []
    assert watched.log(4.0, 4.0) == ["loss spiked"]
    assert watched.log(4.0) == []
    assert watched.log(2.5, 2.5, 2.5, 2.5, 2.5) == []
    assert watched.log(4.0, 4.0, 4.0, 4.0) == []
    assert watched.log(*[1.0] * 400) == []
    assert watched.log(4.0, 4.0, 4.0) == ["loss spiked"]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("loss", [*[1.0] * 100, 50.0, 1.0, 1.0]),
        ("loss", [10.0 / step for step in range(1, 400)]),
        ("loss", [*[1.0] * 30, *[9.0] * 9]),
        ("loss", [*[0.0] * 100, *[9.0] * 9]),
        ("amp/loss_scale", [*[1.0] * 100, *[65536.0] * 9]),
        ("accuracy", [*[1.0] * 100, *[9.0] * 9]),
        ("loss", [*[0.001, 0.001, 0.002, 0.006] * 40, 0.008, 0.007, 0.008]),
    ],
)
def test_what_is_no_loss_spike(key: str, values: list[float]) -> None:
    """One bad batch, a falling loss, too few values before, a loss of 0, a loss scale, another metric, noise."""
    watched = _Watched("loss_spike")
    assert [title for value in values for title in watched.log(value, key=key)] == []


def test_a_spike_between_two_looks_of_a_fast_loop_is_seen() -> None:
    """Hundreds of values may come between two looks, with the spike in their middle."""
    watched = _Watched("loss_spike")
    assert watched.log(*[1.0] * 500) == []
    assert watched.log(*[1.0] * 200, *[8.0] * 10, *[1.0] * 200) == ["loss spiked"]


def test_a_stalled_step_fires_once_and_again_at_the_next_stall() -> None:
    """Ten minutes without a step fire; the next step ends it."""
    watched = _Watched("stalled_step")
    assert watched.look(steps=5, step_age_s=600.0) == []
    assert watched.look(steps=5, step_age_s=601.0) == ["steps stalled"]
    assert watched.look(steps=5, step_age_s=900.0) == []
    assert watched.look(steps=6, step_age_s=0.0) == []
    assert watched.look(steps=6, step_age_s=601.0, longest_step_gap_s=400.0) == []
    assert watched.look(steps=6, step_age_s=801.0, longest_step_gap_s=400.0) == ["steps stalled"]


def test_a_first_step_that_does_not_come_fires_unless_metrics_come() -> None:
    """Half an hour of nothing fires; a program that only logs metrics is not stepping by design."""
    watched = _Watched(StalledStep())
    assert watched.look(running_s=1_800.0) == []
    assert watched.look(running_s=1_801.0) == ["no first step"]
    assert _Watched(StalledStep()).look(running_s=9_000.0, points=1) == []


def test_a_throughput_drop_fires_once_and_again_after_it_was_over() -> None:
    """Two slow periods in a row fire, one does not; it ends above 70 % of the usual rate."""
    watched = _Watched("throughput_drop")
    usual = (10.0,) * 5
    assert watched.look(step_rates_hz=(10.0, 1.0, 1.0)) == []
    assert watched.look(step_rates_hz=(*usual, 4.0)) == []
    assert watched.look(step_rates_hz=(*usual, 4.0, 10.0)) == []
    assert watched.look(step_rates_hz=(*usual, 4.0, 4.9)) == ["training slowed down"]
    assert watched.look(step_rates_hz=(*usual, 4.0, 6.9)) == []
    assert watched.look(step_rates_hz=(*usual, 4.0, 4.9)) == []
    assert watched.look(step_rates_hz=(*usual, 4.0, 7.1)) == []
    assert watched.look(step_rates_hz=(*usual, 7.1, 4.0)) == []
    assert watched.look(step_rates_hz=(*usual, 4.0, 4.0)) == ["training slowed down"]


def test_a_straggling_rank_fires_once_and_again_after_it_caught_up() -> None:
    """The same slow rank in two looks in a row fires; it ends when it is no longer named."""
    watched = _Watched("straggling_rank")
    slow, close = SlowRank(3, 2e8, 1e8, "forward"), SlowRank(3, 1.21e8, 1e8, None)
    other = SlowRank(1, 2e8, 1e8, None)
    assert watched.look(slow_ranks=(slow,)) == []
    assert watched.look(slow_ranks=(other, slow)) == []
    assert watched.look(slow_ranks=(close, slow)) == []
    assert watched.look(slow_ranks=(slow, slow)) == ["rank 3 is slow"]
    assert "2.0 times), most of it in forward" in watched.fired[0].text
    assert watched.look(slow_ranks=(slow, None)) == []
    assert watched.look(slow_ranks=(None, slow)) == []
    assert watched.look(slow_ranks=(None, None)) == []
    assert watched.look(slow_ranks=(slow, slow)) == ["rank 3 is slow"]


def test_a_disk_that_fills_fires_a_warning_and_a_critical_alert_each_once() -> None:
    """Below 5 % and 10 GiB, then below 1 % and 1 GiB; each ends a quarter above its limit."""
    watched = _Watched("disk_nearly_full")
    total = 1_000 * _GIB
    assert watched.look() == []
    assert watched.look(disk_free=10 * _GIB, disk_total=total) == []
    assert watched.look(disk_free=9 * _GIB, disk_total=total) == ["the disk is nearly full"]
    assert watched.look(disk_free=12 * _GIB, disk_total=total) == []
    assert watched.look(disk_free=9 * _GIB, disk_total=total) == []
    assert watched.look(disk_free=_GIB // 2, disk_total=total) == ["the disk is about to be full"]
    assert watched.fired[0].level is AlertLevel.CRITICAL
    assert watched.look(disk_free=100 * _GIB, disk_total=total) == []
    assert watched.look(disk_free=9 * _GIB, disk_total=total) == ["the disk is nearly full"]
    assert _Watched(DiskNearlyFull()).look(disk_free=_GIB, disk_total=10 * _GIB) == []


def test_a_loss_of_telemetry_fires_once_and_again_after_a_quiet_minute() -> None:
    """Each signal and reason fires by itself; what the configured bounds leave out is no loss."""
    watched = _Watched("events_dropped")
    queue, budget = ("traces", "queue_full"), ("traces", "budget")
    assert watched.look(lost={budget: 9}, lost_lately={budget: 9}) == []
    assert watched.look(lost={queue: 2}, lost_lately={queue: 2}) == ["traces lost: queue_full"]
    assert watched.look(lost={queue: 3}, lost_lately={queue: 1}) == []
    assert watched.look(lost={queue: 3}) == []
    assert watched.look(lost={queue: 5}, lost_lately={queue: 2}) == ["traces lost: queue_full"]
    assert watched.fired[0].text == "2 within the last minute, 5 since the start."


@pytest.mark.parametrize(
    "make",
    [
        lambda: LossSpike(ratio=0),
        lambda: StalledStep(stalled_s=math.nan),
        lambda: ThroughputDrop(ratio=True),
        lambda: StragglingRank(looks="2"),  # type: ignore[arg-type] # what the test is about
    ],
)
def test_a_threshold_that_is_none_is_refused(make: Callable[[], AlertRule]) -> None:
    """The error names the rule, the threshold and what it takes."""
    with pytest.raises(ConfigError, match=r"cannot be used: it takes a number above 0"):
        make()


def test_thresholds_of_ones_own() -> None:
    """A built-in rule with another threshold fires by that."""
    assert _Watched(StalledStep(stalled_s=5)).look(steps=1, step_age_s=6.0) == ["steps stalled"]


def test_a_function_is_a_rule_and_fires_once_a_condition() -> None:
    """A plain function's alert carries the function's name, whatever its title says the second time."""

    def too_few_steps(view: AlertView) -> Alert | None:
        return Alert(f"only {view.steps}") if view.steps < 10 else None

    watched = _Watched(too_few_steps)
    assert watched.look(steps=3) == ["only 3"]
    assert watched.fired[0].rule == "too_few_steps"
    assert watched.look(steps=4) == []
    assert watched.look(steps=11) == []
    assert watched.look(steps=4) == ["only 4"]


def test_a_rule_may_be_a_generator_of_several_conditions_and_knows_which_are_active() -> None:
    """Each subject fires by itself, and the view tells the rule which ones hold since an earlier look."""
    seen: list[frozenset[str]] = []

    def by_signal(view: AlertView) -> Iterator[Alert]:
        seen.append(view.active)
        for signal, _ in view.lost:
            yield Alert(f"{signal}!", level=AlertLevel.INFO, subject=signal)

    watched = _Watched(by_signal)
    assert watched.look(lost={("a", ""): 1, ("b", ""): 1}) == ["a!", "b!"]
    assert watched.look(lost={("b", ""): 1, ("c", ""): 1}) == ["c!"]
    assert seen == [frozenset(), {"a", "b"}]


@pytest.mark.parametrize("answer", ["a text", True, 7, [Alert("x"), "y"], Alert("x", level="loud")])  # type: ignore[arg-type]
def test_a_rule_that_raises_or_answers_nonsense_is_logged_once(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It goes on to be asked, and the other rules go on too."""
    fired: list[Alert] = []
    asked = []

    def broken(view: AlertView) -> Any:
        asked.append(view)
        return answer

    watch = AlertWatch([broken, lambda _view: Alert("fine")], fired.append)
    for _ in range(3):
        watch.look(AlertView())
    assert [alert.title for alert in fired] == ["fine"]
    assert len(asked) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "alert rule broken failed; it goes on, and is not logged again"
    ]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_rule_that_would_end_the_program_ends_nothing(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """SystemExit and the like out of a rule are logged as any error of it, and the other rules go on."""
    fired: list[Alert] = []

    def leaves(_view: AlertView) -> None:
        raise error

    watch = AlertWatch([leaves, lambda view: Alert("fine", subject=str(view.steps))], fired.append)
    for steps in range(3):
        watch.look(AlertView(steps=steps))
    assert len(fired) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "alert rule leaves failed; it goes on, and is not logged again"
    ]


def test_hundreds_of_conditions_at_once_are_few_alerts() -> None:
    """The first four go out, and one that names twenty of the others; none of them fires again."""
    watched = _Watched("nonfinite_metric")
    keys = [f"m{index}" for index in range(300)]
    metrics = {key: MetricLook(math.nan, 1, 1, 1) for key in keys}
    titles = watched.look(metrics=metrics)
    assert titles == [*(f"{key} is NaN" for key in keys[:4]), "296 more at once"]
    assert watched.fired[-1].text.endswith("m23 is NaN and 276 more")
