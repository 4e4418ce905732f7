"""The committed dashboards as a browser would use them: their panels, and their queries with values for variables."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["DASHBOARDS", "REPOSITORY", "PanelQuery", "as_grafana_sends", "load_dashboards", "panel_queries"]

REPOSITORY = Path(__file__).resolve().parents[2]
#: Where the dashboards are.
DASHBOARDS = REPOSITORY / "collector-config" / "grafana" / "dashboards"

#: What Grafana puts for its own variables, for a look at the last hour.
_OWN_VARIABLES = {"$__rate_interval": "1m", "$__interval": "15s", "$__range": "1h"}
_VARIABLE = re.compile(r"\$\{(\w+):regex\}")
_SPECIAL_IN_REGEX = re.compile(r"[\\^$*+?.()|[\]{}/]")


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of a panel or variable.

    Attributes:
        dashboard: the dashboard's uid.
        panel: the panel's title, or ``variable <name>``.
        query: which one of the panel's: its letter.
        expr: PromQL with variables.
        is_instant: whether it is asked for one point in time.
    """

    dashboard: str
    panel: str
    query: str
    expr: str
    is_instant: bool

    def __str__(self) -> str:
        return f"{self.dashboard} / {self.panel} / {self.query}"


def load_dashboards() -> dict[str, dict[str, Any]]:
    """Return all dashboards, by uid."""
    documents = [json.loads(file.read_text("utf-8")) for file in sorted(DASHBOARDS.glob("*.json"))]
    return {document["uid"]: document for document in documents}


def panel_queries(dashboard: Mapping[str, Any]) -> Iterator[PanelQuery]:
    """Yield the PromQL of each panel, annotation and variable of a dashboard."""
    uid = dashboard["uid"]
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            if "expr" in target:
                is_instant = target.get("instant", False)
                yield PanelQuery(uid, panel["title"], target["refId"], target["expr"], is_instant)
    for annotation in dashboard["annotations"].get("list", ()):
        yield PanelQuery(uid, f"annotation {annotation['name']}", "A", annotation["target"]["expr"], is_instant=False)
    for variable in dashboard.get("templating", {}).get("list", ()):
        selector, _, _ = variable["query"]["query"].removeprefix("label_values(").rpartition(",")
        yield PanelQuery(uid, f"variable {variable['name']}", "A", selector, is_instant=True)


def as_grafana_sends(expr: str, values: Mapping[str, str | None]) -> str:
    """Return PromQL with values in the place of variables, formatted as Grafana formats them.

    Args:
        expr: PromQL with variables.
        values: by variable; None: all.
    """

    def formatted(found: re.Match[str]) -> str:
        value = values[found[1]]
        return ".*" if value is None else _SPECIAL_IN_REGEX.sub(r"\\\g<0>", value)

    for name, value in _OWN_VARIABLES.items():
        expr = expr.replace(name, value)
    return _VARIABLE.sub(formatted, expr)
