"""Generates what Grafana reads: the dashboards, and alert rules that repeat Prometheus' alerts.

``python -m dashboards`` writes the files below ``collector-config/grafana``; they are committed, and a test compares.
"""

from __future__ import annotations

from dashboards.output import generated_files

__all__ = ["generated_files"]
