"""Dashboards against Grafana's own types, and their queries against a real Prometheus that a real run filled."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING

import pytest

from support.dashboard_types import type_errors, types_or_skip
from support.dashboards import PanelQuery, as_grafana_sends, load_dashboards, panel_queries
from support.stack_runs import Training

if TYPE_CHECKING:
    from pathlib import Path

    from support.stack import Stack

pytestmark = pytest.mark.stack

#: A key as people have them, and as PromQL, regular expressions and Grafana's variables do not like them.
KEY = 'loss/train "été" \\d+ (a|b) {x="$1"} [5m] $run ${run} %'

#: How long the training goes on at most; its queries are asked while it does.
TRAINING_S = 120
#: Two ranks of which one works longer, with everything that a run can record. Gates have no API of their own yet.
TRAINING = f"""
KEY = {KEY!r}

def train(run):
    rank = run.rank_context.rank
    ends = time.monotonic() + {TRAINING_S}
    run._session.state.gate_passed["fit"] = True
    run._session.state.gate_metrics["fit", "p50"] = 1.5
    step = 0
    while time.monotonic() < ends and not os.path.exists("end"):
        with run.step(step, samples=8, tokens=1024):
            with run.phase("forward"):
                time.sleep(0.02 + 0.03 * rank)
            with run.phase("all_reduce"):
                time.sleep(0.03 * (1 - rank))
        run.log_metric(KEY, 1 / (1 + step))
        run.log_metric("accuracy", step)
        run.count("images", 8)
        run.observe("sequence length", 100 + step % 7, unit="token")
        if step == 20:
            run.log_metric("unstable", math.nan)
            run.alert("look", "here", level="warning")
        if step % 100 == 50 and rank == 0:
            with run.checkpoint("model.pt"):
                time.sleep(0.01)
        step += 1
"""

NO_GPU = "the machine that tests has no GPU"
NOTHING_LOST = "nothing was lost"
WELL = "no benchmark failed, and the pipeline is well"
TOO_SHORT = "what is usual is known after 20 minutes"
#: Queries without data, each with its reason.
WITHOUT_DATA = {
    "runspan-gates / Failed gates / A": WELL,
    "runspan-pipeline / Firing alerts of the pipeline / A": WELL,
    "runspan-pipeline / Lost by runs / A": NOTHING_LOST,
    "runspan-run / GPU / A": NO_GPU,
    "runspan-run / GPU memory / A": NO_GPU,
    "runspan-run / GPU temperature / A": NO_GPU,
    "runspan-run / GPU power / A": NO_GPU,
    "runspan-run / Step rate / B": TOO_SHORT,
    "runspan-run / Telemetry dropped / A": NOTHING_LOST,
}

#: Those of them that may have data all the same: of other runs of the stack.
OF_ALL_RUNS = {"runspan-pipeline / Firing alerts of the pipeline / A", "runspan-pipeline / Lost by runs / A"}

BOARDS = load_dashboards()
QUERIES = [query for board in BOARDS.values() for query in panel_queries(board)]


def test_dashboards_have_grafana_s_types(tmp_path: Path) -> None:
    """`tsc --strict` accepts each dashboard, and each panel's options, as the types of @grafana/schema."""
    assert type_errors(BOARDS, types_or_skip(), tmp_path) == ""


def test_wrong_types_are_found(tmp_path: Path) -> None:
    """The check above sees an unknown option, an unknown value and a wrong type."""
    board = copy.deepcopy(BOARDS["runspan-fleet"])
    board["refresh"] = 30
    board["panels"][0]["options"]["colorMode"] = "loud"
    board["panels"][1]["options"]["volume"] = 11
    errors = type_errors({"runspan-fleet": board}, types_or_skip(), tmp_path)
    assert [word in errors for word in ("number", "loud", "volume")] == [True] * 3


def test_every_query_returns_data(stack: Stack, tmp_path: Path) -> None:
    """Every query of every dashboard finds data of a real run, but for those that are listed with a reason."""
    training = Training(tmp_path, stack, TRAINING, ranks=2)
    training.start()
    of_run = {"experiment": training.experiment, "run": training.run_id, "rank": None, "key": None, "benchmark": None}
    without = set(QUERIES)
    ends_s = time.monotonic() + TRAINING_S - 10
    while {str(query) for query in without} - set(WITHOUT_DATA) and time.monotonic() < ends_s:
        without = {query for query in without if not answers(stack, query, of_run)}
        time.sleep(2)
    for key in (KEY, "accuracy"):
        value = next(query for query in QUERIES if query.panel == "$key" and query.dashboard == "runspan-run")
        assert answers(stack, value, {**of_run, "key": key}), key
        assert not answers(stack, value, {**of_run, "key": key[:-1]}), key
    (tmp_path / "end").touch()
    for ended in training.wait():
        assert (ended.returncode, ended.dropped) == (0, {}), ended.stderr
    assert {str(query) for query in without} | OF_ALL_RUNS == set(WITHOUT_DATA)
    assert found_in_jaeger(stack, training)


def found_in_jaeger(stack: Stack, training: Training) -> set[str]:
    """Return the traces that the search of the panel of traces finds."""
    panel = next(panel for panel in BOARDS["runspan-run"]["panels"] if panel["title"] == "Traces")
    (target,) = panel["targets"]
    tag, _, value = target["tags"].partition("=")
    assert (target["service"], value) == ("$service", "${run:doublequote}")
    (service,) = {sample.labels["job"] for sample in stack.prometheus.client.query(training.select("target_info"))}
    return stack.jaeger.client.find_trace_ids(service, {tag: training.run_id})


def answers(stack: Stack, query: PanelQuery, values: dict[str, str | None]) -> bool:
    """Return whether a query has data now, or had in the last minutes where it draws lines."""
    expr, client = as_grafana_sends(query.expr, values), stack.prometheus.client
    if query.is_instant:
        return bool(client.query(expr))
    return bool(client.query_range(expr, time.time() - 120, time.time(), 15))
