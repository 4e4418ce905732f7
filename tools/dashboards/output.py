"""Which files are generated, and their text."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import fleet, gates, pipeline, run
from dashboards.alerting import grafana_alert_rules

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

__all__ = ["generated_files"]

_GRAFANA = PurePosixPath("collector-config/grafana")
_ALERTS = PurePosixPath("collector-config/prometheus/rules/alerts.yml")
_DO_NOT_EDIT = "# Generated from collector-config/prometheus/rules/alerts.yml by tools/dashboards: do not edit.\n\n"


def generated_files(repository: Path) -> dict[PurePosixPath, str]:
    """Return the text of every generated file, by its path in the repository.

    Args:
        repository: where Prometheus' alert rules are read.
    """
    files = {
        _GRAFANA / "dashboards" / f"{name}.json": _dashboard_text(build())
        for name, build in {
            "fleet": fleet.build,
            "run": run.build,
            "gates": gates.build,
            "pipeline": pipeline.build,
        }.items()
    }
    rules = grafana_alert_rules((repository / _ALERTS).read_text("utf-8"))
    files[_GRAFANA / "provisioning" / "alerting" / "rules.yaml"] = _DO_NOT_EDIT + yaml.safe_dump(
        rules, sort_keys=False, width=120, allow_unicode=True
    )
    return files


def _dashboard_text(dashboard: Dashboard) -> str:
    """Return a dashboard's text, with what the library's builders leave open or cannot say."""
    document = json.loads(json.dumps(dashboard, cls=JSONEncoder))
    for number, panel in enumerate(document["panels"], start=1):
        panel["id"] = number
        # Of older versions of Grafana.
        panel.get("options", {}).pop("footer", None)
    for variable in document["templating"].get("list", ()):
        for of_intervals in ("auto", "auto_count", "auto_min"):
            variable.pop(of_intervals, None)
    for shown in (*document["links"], *document["annotations"].get("list", ())):
        del shown["placement"]  # Else it stands in a menu, not in sight.
    return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
