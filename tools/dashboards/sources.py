"""What dashboards and alert rules call the data sources of ``provisioning/datasources``."""

from __future__ import annotations

from typing import Final

__all__ = ["EXPRESSIONS_UID", "FOLDER", "JAEGER_UID", "PROMETHEUS_UID"]

PROMETHEUS_UID: Final = "prometheus"
JAEGER_UID: Final = "jaeger"
#: Grafana's own engine for expressions over queries.
EXPRESSIONS_UID: Final = "__expr__"
#: The folder of dashboards and alert rules.
FOLDER: Final = "runspan"
