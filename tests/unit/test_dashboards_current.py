"""Dashboards and alert rules for Grafana: generated, current, and sound as far as that shows without a server."""

from __future__ import annotations

import re
from typing import Any

import promql_parser
import pytest
import yaml

from dashboards import generated_files
from runspan.semconv import INSTRUMENTS
from support.dashboards import DASHBOARDS, REPOSITORY, as_grafana_sends, load_dashboards, panel_queries

PROVISIONING = DASHBOARDS.parent / "provisioning"
RULES = REPOSITORY / "collector-config" / "prometheus" / "rules"
#: Metrics of other programs, by how their names begin.
FOREIGN = ("otelcol_", "prometheus_", "runspan_spans_", "target_info", "up", "ALERTS", "ALERTS_FOR_STATE")

BOARDS = load_dashboards()
QUERIES = [query for board in BOARDS.values() for query in panel_queries(board)]


def rules(kind: str) -> list[dict[str, Any]]:
    """Return all of Prometheus' rules of a kind, ``alert`` or ``record``."""
    groups = [group for file in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def metric_names(expr: str) -> set[str]:
    """Return what PromQL reads: words that are neither functions, labels, keywords, strings nor durations."""
    bare = re.sub(r'"[^"]*"|`[^`]*`', "", expr)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", bare)
    bare = re.sub(r"\b(by|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    words = re.findall(r"(?<![\w:.])[a-zA-Z_:][\w:]*(?!\s*\()\b(?!\s*\()", bare)
    return set(words) - {"and", "or", "unless", "by", "on", "offset", "sum", "max", "min", "avg", "count", "quantile"}


def test_committed_files_are_what_the_generator_writes() -> None:
    """Every generated file is committed as it would be generated now; `make dashboards` writes them."""
    for path, text in generated_files(REPOSITORY).items():
        assert (REPOSITORY / path).read_text("utf-8") == text, f"{path} is not current: run `make dashboards`"


def test_generator_knows_every_dashboard() -> None:
    """No dashboard is committed that the generator does not write."""
    generated = {path.name for path in generated_files(REPOSITORY) if path.suffix == ".json"}
    assert {file.name for file in DASHBOARDS.iterdir()} == generated


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_query_parses(query: Any) -> None:
    """Each panel's, annotation's and variable's expression is PromQL."""
    words = dict.fromkeys(("experiment", "run", "rank", "key", "benchmark"), "x")
    promql_parser.parse(as_grafana_sends(query.expr, words))


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_query_reads_metrics_that_exist(query: Any) -> None:
    """Each expression reads instruments by their Prometheus names, recorded series, or other programs' metrics."""
    known = {instrument.prometheus for instrument in INSTRUMENTS.values()} | {
        rule["record"] for rule in rules("record")
    }
    unknown = {name for name in metric_names(query.expr) if name not in known and not name.startswith(FOREIGN)}
    assert unknown == set()


def test_rules_read_metrics_that_exist() -> None:
    """Prometheus' rules read instruments by their Prometheus names, recorded series, or other programs' metrics."""
    known = {instrument.prometheus for instrument in INSTRUMENTS.values()} | {
        rule["record"] for rule in rules("record")
    }
    for rule in [*rules("alert"), *rules("record")]:
        unknown = {name for name in metric_names(rule["expr"]) if name not in known and not name.startswith(FOREIGN)}
        assert unknown == set(), rule.get("alert", rule.get("record"))


def test_names_are_found_in_promql() -> None:
    """The check above sees names wherever they stand."""
    expr = (
        'sum by (a) (rate(foo_total{b="c"}[5m])) / on (x) group_left () max(bar:baz) or vector(0) unless qux offset 5m'
    )
    assert metric_names(expr) == {"foo_total", "bar:baz", "qux"}


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_variables_take_any_characters(query: Any) -> None:
    """Variables stand in backquotes, in Grafana's regex format and behind =~, so that nothing in a value is special."""
    bare = re.sub(r"=~`\$\{\w+:regex\}`", "", query.expr)
    own = bare.replace("$__rate_interval", "").replace("$__interval", "").replace("$__range", "")
    assert "$" not in re.sub(r'"0*\$1"', "", own)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_panels_fill_the_grid_without_overlap(board: Any) -> None:
    """Panels lie within 24 columns, none on another, and every line of panels is filled to its end."""
    cells: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24, panel["title"]
                assert (x, y) not in cells, f"{panel['title']} lies on {cells[x, y]}"
                cells[x, y] = panel["title"]
    lines = range(max(y for _, y in cells) + 1)
    assert [y for y in lines if sum((x, y) in cells for x in range(24)) != 24] == []


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_panels_say_what_they_show(board: Any) -> None:
    """Each panel has an id and a title of its own, a data source by uid, and each series of several a legend."""
    titles = [panel["title"] for panel in board["panels"] if panel["type"] != "row"]
    assert len(titles) == len(set(titles))
    identifiers = [panel["id"] for panel in board["panels"]]
    assert sorted(identifiers) == list(range(1, len(identifiers) + 1))
    for panel in board["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["datasource"]["uid"] in {"prometheus", "jaeger"}
        for target in panel["targets"]:
            if panel["type"] in {"timeseries", "heatmap", "state-timeline"}:
                assert target["legendFormat"], panel["title"]


def test_dashboards_link_and_are_found_by_fixed_uids() -> None:
    """The four dashboards have the uids by which links and people find them, and the link of a table leads to one."""
    assert set(BOARDS) == {"runspan-fleet", "runspan-run", "runspan-gates", "runspan-pipeline"}
    assert all(board["schemaVersion"] == 42 for board in BOARDS.values())
    links = re.findall(r"/d/([\w-]+)", str(BOARDS))
    assert links
    assert set(links) <= set(BOARDS)


def test_run_dashboard_has_the_variables_that_people_choose_by() -> None:
    """One run is found by experiment, run, rank and metric key."""
    names = [variable["name"] for variable in BOARDS["runspan-run"]["templating"]["list"]]
    assert names == ["experiment", "run", "rank", "key", "service"]


def test_grafana_repeats_every_alert_and_no_threshold() -> None:
    """Grafana has one rule for each of Prometheus' alerts, which only asks whether that one fires."""
    document = yaml.safe_load((PROVISIONING / "alerting" / "rules.yaml").read_text())
    grafana = [rule for group in document["groups"] for rule in group["rules"]]
    assert [rule["title"] for rule in grafana] == [rule["alert"] for rule in rules("alert")]
    for rule in grafana:
        firing = f'ALERTS{{alertname="{rule["title"]}", alertstate="firing"}}'
        asked = rule["data"][0]["model"]["expr"]
        assert asked == f"max without (alertname, alertstate, severity) ({firing})"
        assert rule["data"][1]["model"]["conditions"][0]["evaluator"] == {"type": "gt", "params": [0]}
        assert (rule["for"], rule["noDataState"]) == ("0s", "OK")
        assert len(rule["uid"]) <= 40


def test_alerts_say_who_is_concerned_and_what_to_do() -> None:
    """Each alert has a severity, a summary, a description and a runbook; what Grafana sends too reads labels only."""
    for rule in rules("alert"):
        assert rule["labels"]["severity"] in {"critical", "warning"}
        texts = rule["annotations"]
        assert set(texts) == {"summary", "description", "runbook"}, rule["alert"]
        assert len(texts["runbook"]) > 150, rule["alert"]
        for text in (texts["summary"], texts["runbook"]):
            assert all(found.startswith("$labels.") for found in re.findall(r"{{\s*(.*?)\s*}}", text)), rule["alert"]


def test_thresholds_stand_once() -> None:
    """Alerts compare with recorded thresholds, each of which is used, and with no number but zero and one."""
    thresholds = {rule["record"] for rule in rules("record") if rule["record"].startswith("runspan:threshold:")}
    used = {name for rule in rules("alert") for name in metric_names(rule["expr"]) if "threshold" in name}
    assert used == thresholds
    for rule in rules("alert"):
        numbers = re.findall(r"[<>]=?\s*(?:bool\s*)?([\d.]+)", rule["expr"])
        assert set(numbers) <= {"0"}, rule["alert"]


def test_provisioning_refers_to_what_there_is() -> None:
    """Data sources, contact points and the folder of dashboards are called alike wherever they are named."""
    sources = yaml.safe_load((PROVISIONING / "datasources" / "datasources.yaml").read_text())["datasources"]
    by_uid = {source["uid"]: source for source in sources}
    assert set(by_uid) == {"prometheus", "jaeger"}
    assert by_uid["prometheus"]["jsonData"]["exemplarTraceIdDestinations"][0]["datasourceUid"] == "jaeger"
    assert by_uid["jaeger"]["jsonData"]["tracesToMetrics"]["datasourceUid"] == "prometheus"
    points = yaml.safe_load((PROVISIONING / "alerting" / "contact-points.yaml").read_text())["contactPoints"]
    policies = yaml.safe_load((PROVISIONING / "alerting" / "policies.yaml").read_text())["policies"]
    receivers = {policy["receiver"] for root in policies for policy in (root, *root["routes"])}
    assert receivers == {point["name"] for point in points}
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]["grafana"]
    provider = yaml.safe_load((PROVISIONING / "dashboards" / "dashboards.yaml").read_text())["providers"][0]
    assert any(f":{provider['options']['path']}:" in volume for volume in compose["volumes"])


def test_single_dollars_in_provisioning_are_variables_of_the_container() -> None:
    """docker-compose.yml gives each variable that a provisioning file reads; dollars of Grafana's own are escaped."""
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]["grafana"]["environment"]
    for file in sorted(PROVISIONING.glob("*/*.yaml")):
        read = str(yaml.safe_load(file.read_text()))
        single = re.findall(r"\$\{?(\w*)", read.replace("$$", ""))
        assert set(single) <= set(compose), file.name
