from __future__ import annotations

import logging
import math
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import runspan
from runspan._run import alerting
from runspan.alerts import Alert, AlertView, StalledStep
from runspan.config import ALERT_RULES
from runspan.testing import FakeClock
from support.cli import make_step
from support.programs import events_of, lines_of
from support.traces import make_meta, write_lines
from support.webhook_receiver import WebhookReceiver

if TYPE_CHECKING:
    from support.live import LiveRuns


@pytest.fixture(autouse=True)
def _looks_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave it to the tests when a run is looked at; its end still looks a last time."""
    monkeypatch.setattr(alerting, "_LOOK_S", 3_600.0)
    monkeypatch.setenv("no_proxy", "*")


def _look(run: runspan.Run) -> list[str]:
    """Look at a run, and return the titles of the alerts that its file has got by that."""
    live = run._session
    assert live.alerting is not None
    path = live.writer.path
    assert path is not None
    before = len(_titles(run))
    live.alerting.look()
    return _titles(run)[before:]


def _titles(run: runspan.Run) -> list[str]:
    path = run._session.writer.path
    assert path is not None
    return [line["message"] for line in events_of(lines_of(path), "event", name="alert")]


def test_a_nan_goes_to_log_file_span_and_counter(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """The built-in rule's alert is a log record, a line, a short span under rank and a count, and asks to stop."""
    run = live.start(stop_on_error=True)
    run.log_metric("loss", 1.0)
    assert _look(run) == []
    assert not run.should_stop
    run.log_metric("loss", math.nan)
    assert _look(run) == ["loss is NaN"]
    assert _look(run) == []
    assert run.should_stop
    lines = live.lines(run)
    (event,) = events_of(lines, "event", name="alert")
    assert event["attributes"]["rule"] == "nonfinite_metric"
    assert event["level"] == "error"
    (span,) = events_of(lines, "span_start", name="alert")
    assert span["parent_id"] == lines[0]["span_id"]
    assert run._session.state.alerts == {("error", "nonfinite_metric"): 1}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_the_end_of_a_short_run_looks_a_last_time(live: LiveRuns) -> None:
    """A run that is over before the first look still tells of its NaN, before the terminal line."""
    run = live.start()
    run.log_metric("loss", math.inf)
    run.finish()
    lines = live.lines(run)
    assert events_of(lines, "event", name="alert")
    assert lines[-1]["kind"] == "terminal"


def test_stalled_steps_by_the_runs_own_clock(live: LiveRuns) -> None:
    """Ten minutes after the last step the alert fires, once; after a gap as long, twice as long fires again."""
    clock = FakeClock()
    run = live.start(clock=clock)
    for limit_s in (600, 1_202):
        with run.step():
            pass
        assert _look(run) == []
        clock.advance(limit_s)
        assert _look(run) == []
        clock.advance(1)
        assert _look(run) == ["steps stalled"]
        assert _look(run) == []


def test_a_training_that_slows_down(live: LiveRuns) -> None:
    """Two minutes at a tenth of the usual rate fire; an evaluation of five minutes does not."""
    clock = FakeClock()
    run = live.start(clock=clock)

    def minutes(count: int, step_s: float) -> list[str]:
        live_alerting = run._session.alerting
        assert live_alerting is not None
        before = len(_titles(run))
        for _ in range(int(count * 60 / step_s)):
            clock.advance(step_s)
            with run.step():
                pass
            live_alerting.look()
        return _titles(run)[before:]

    assert minutes(8, 0.5) == []
    clock.advance(300)
    assert minutes(3, 0.5) == []
    assert minutes(5, 5.0) == ["training slowed down"]
    assert minutes(3, 0.5) == []
    assert minutes(5, 5.0) == ["training slowed down"]


def test_rank_0_names_the_rank_that_the_others_wait_for(live: LiveRuns) -> None:
    """It reads the ends of the other ranks' files every 30 s; no other rank does."""
    clock = FakeClock()
    context = runspan.RankContext(0, 3)
    run = live.start(clock=clock, rank_context=context, run_id="r")
    assert run.directory is not None
    for rank, own_ms in ((1, 100.0), (2, 300.0)):
        steps = [make_step(number, forward=own_ms, all_reduce=400.0 - own_ms) for number in range(200)]
        write_lines(run.directory / f"rank-0000{rank}.jsonl", [make_meta(rank, run_id="r"), *steps])
    titles = []
    for _ in range(12):
        clock.advance(10)
        titles.append(_look(run))
    assert titles == [[], [], [], [], [], ["rank 2 is slow"], *[[]] * 6]
    other = live.start(clock=clock, rank_context=runspan.RankContext(1, 3), run_id="other")
    clock.advance(3_000)
    assert _look(other) == ["no first step"]


def test_a_full_disk(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """The free room is that of the run directory's file system, asked every ten seconds."""
    clock = FakeClock()
    free = [500]
    monkeypatch.setattr(
        os, "statvfs", lambda _: SimpleNamespace(f_bavail=free[0], f_blocks=1_000, f_frsize=1 << 30), raising=True
    )
    run = live.start(clock=clock)
    assert _look(run) == []
    free[0] = 5
    assert _look(run) == []
    clock.advance(10)
    assert _look(run) == ["the disk is nearly full"]


def test_losses_of_the_run_fire_and_do_not_for_a_minute(live: LiveRuns) -> None:
    """A value that cannot be recorded is a loss; a second one within the minute is the same condition."""
    clock = FakeClock()
    run = live.start(clock=clock)
    run.log_metric("loss", "no number")
    assert _look(run) == ["metric lost: invalid_value"]
    clock.advance(50)
    run.log_metric("loss", "no number")
    assert _look(run) == []
    clock.advance(61)
    assert _look(run) == []
    run.log_metric("loss", "no number")
    assert _look(run) == ["metric lost: invalid_value"]


def test_rules_of_the_configuration(live: LiveRuns) -> None:
    """Built-in rules by name, with thresholds of one's own, and plain functions that see metrics by key."""
    clock = FakeClock()

    def low(view: AlertView) -> Alert | None:
        metric = view.metrics.get("accuracy")
        return Alert("accuracy is low", level=runspan.AlertLevel.CRITICAL) if metric and metric.last < 0.5 else None

    run = live.start(clock=clock, alert_rules=(*ALERT_RULES[:2], StalledStep(stalled_s=5), low), stop_on_critical=True)
    run.log_metric("accuracy", 0.1)
    with run.step():
        pass
    assert _look(run) == ["accuracy is low"]
    clock.advance(6)
    assert _look(run) == ["steps stalled"]
    assert run.should_stop


def test_a_rule_that_raises_hurts_nothing(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once; the others fire, the run goes on and ends as it would have."""

    def broken(_: AlertView) -> Alert | None:
        raise ZeroDivisionError

    run = live.start(alert_rules=(broken, "nonfinite_metric"), strict=True)
    run.log_metric("loss", math.nan)
    assert _look(run) == ["loss is NaN"]
    assert _look(run) == []
    run.finish()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert run.status() is runspan.RunStatus.SUCCESS


def test_rules_from_the_environment() -> None:
    """Names are a list, none turns all off; an unknown one is an error that names the variable."""
    from_env = runspan.TracingConfig.from_env
    assert from_env({"RUNSPAN_ALERT_RULES": "loss_spike, stalled_step"}).alert_rules == ("loss_spike", "stalled_step")
    assert from_env({"RUNSPAN_ALERT_RULES": "none"}).alert_rules == ()
    assert from_env({}).alert_rules == ALERT_RULES
    with pytest.raises(runspan.ConfigError, match="RUNSPAN_ALERT_RULES='loss_spyke' cannot be used: it takes some of"):
        from_env({"RUNSPAN_ALERT_RULES": "loss_spyke"})


def test_looks_that_cost_much_are_taken_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a second, or as rarely as it takes to stay at a hundredth of a processor."""
    monkeypatch.setattr(alerting, "_LOOK_S", 1.0)
    assert alerting.pause_s(0.002) == 1.0
    assert alerting.pause_s(0.120) == pytest.approx(12.0)


def test_no_rules_no_thread(live: LiveRuns) -> None:
    """A configuration without rules looks at nothing; the program's own alerts still go out."""
    run = live.start(alert_rules=())
    assert run._session.alerting is not None
    assert run._session.alerting._thread is None
    run.log_metric("loss", math.nan)
    run.alert("mine")
    run.finish()
    assert _titles(run) == ["mine"]


def test_alerts_are_posted_to_the_webhook(live: LiveRuns) -> None:
    """A rule's alert and the program's own arrive with who raised them, secrets hidden; the end waits for them."""
    with WebhookReceiver() as receiver:
        context = runspan.RankContext(0, 2, host="node7")
        run = live.start(
            alert_webhook=receiver.url, run_id="r", name="mine", rank_context=context, shutdown_timeout_s=10.0
        )
        run.alert("token", "see https://u:hunter2@host/", "info")
        run.log_metric("loss", math.nan)
        run.finish()
        posts = sorted((receiver.next_post() for _ in range(2)), key=lambda post: str(post.document["rule"]))
    by_rule, by_user = posts[0].document, posts[1].document
    assert by_rule["text"] == "run r, rank 0: loss is NaN: A value that is not finite was logged."
    identity = {"run_id": "r", "name": "mine", "rank": 0, "world_size": 2, "attempt": 0, "host": "node7"}
    assert identity.items() <= by_rule.items()
    assert by_rule["trace_id"] == run.trace_id
    assert (by_user["level"], by_user["rule"]) == ("info", "user")
    assert "hunter2" not in str(by_user)


def test_what_the_webhook_loses_is_counted_in_the_file(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that refuses costs one warning that names no URL, and a line with the count."""
    with WebhookReceiver([404, 404]) as receiver:
        run = live.start(alert_webhook=receiver.url, shutdown_timeout_s=10.0)
        run.alert("one")
        run.alert("two")
        run.finish()
    (dropped,) = events_of(live.lines(run), "dropped", signal="webhook")
    assert (dropped["reason"], dropped["count"]) == ("refused", 2)
    warnings = [record.getMessage() for record in caplog.records if "webhook" in record.getMessage()]
    assert len(warnings) == 1
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("wrong", ["https://", "http://:80/x", "ftp://host/x", "http://host:99999/", "http://a b/"])
def test_a_webhook_that_is_no_url_is_refused_without_showing_it(live: LiveRuns, wrong: str) -> None:
    """The error names the field and what it takes; the URL is a credential."""
    with pytest.raises(runspan.ConfigError, match=r"alert_webhook.*http or https URL") as raised:
        live.config(alert_webhook=wrong)
    assert wrong not in str(raised.value)


@pytest.mark.parametrize("wrong", ["loss_spike", [7], ["loss_spyke"], [""], 5])
def test_rules_that_are_none_are_refused(live: LiveRuns, wrong: Any) -> None:
    """The error names the field and what it takes."""
    with pytest.raises(runspan.ConfigError, match="alert_rules"):
        live.config(alert_rules=wrong)
