"""Grafana's alert rules: one for each alert of Prometheus, which asks only whether that one fires."""

from __future__ import annotations

import re
from typing import Any

import yaml

from dashboards.sources import EXPRESSIONS_UID, FOLDER, PROMETHEUS_UID

__all__ = ["grafana_alert_rules"]

_LOOK_BACK_S = 600


def grafana_alert_rules(prometheus_alerts: str) -> dict[str, Any]:
    """Return a provisioning file's content.

    Thresholds, durations and expressions stand in Prometheus alone. Summary and runbook are taken over, since an alert
    that Grafana sends has only the labels of the series that it read.

    Args:
        prometheus_alerts: the text of the file of Prometheus' alerts.
    """
    alerts = [
        rule for group in yaml.safe_load(prometheus_alerts)["groups"] for rule in group["rules"] if "alert" in rule
    ]
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": "runspan",
                "folder": FOLDER,
                "interval": "30s",
                "rules": [_rule(alert) for alert in alerts],
            }
        ],
    }


def _rule(alert: dict[str, Any]) -> dict[str, Any]:
    name: str = alert["alert"]
    return {
        "uid": _uid(name),
        "title": name,
        "condition": "firing",
        "data": [
            {
                "refId": "alerts",
                "relativeTimeRange": {"from": _LOOK_BACK_S, "to": 0},
                "datasourceUid": PROMETHEUS_UID,
                "model": {
                    "refId": "alerts",
                    # Without the labels that Grafana sets itself.
                    "expr": "max without (alertname, alertstate, severity) "
                    f'(ALERTS{{alertname="{name}", alertstate="firing"}})',
                    "instant": True,
                    "range": False,
                },
            },
            {
                "refId": "firing",
                "relativeTimeRange": {"from": _LOOK_BACK_S, "to": 0},
                "datasourceUid": EXPRESSIONS_UID,
                "model": {
                    "refId": "firing",
                    "type": "threshold",
                    "expression": "alerts",
                    "conditions": [{"evaluator": {"type": "gt", "params": [0]}}],
                },
            },
        ],
        # Prometheus has waited already. No series means that the alert does not fire.
        "for": "0s",
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": {"severity": alert["labels"]["severity"]},
        "annotations": {text: _escaped(alert["annotations"][text]) for text in ("summary", "runbook")},
    }


def _uid(alert_name: str) -> str:
    """Return a fixed uid: Grafana takes at most 40 letters, digits, dashes and underscores."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", alert_name).lower()


def _escaped(template: str) -> str:
    """Return a template as a provisioning file writes it, where a single dollar sign names an environment variable."""
    return template.replace("$", "$$")
