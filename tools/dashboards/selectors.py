"""Label matchers with dashboard variables, and PromQL that several dashboards share.

A variable stands in backquotes and with Grafana's ``regex`` format: nothing is an escape in there, so names and keys
with quotes, backslashes or any other character but a backquote find their series.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BY_RUN", "EXPERIMENT", "KEY", "RANKS", "RUN", "in_rank_order", "newest"]

EXPERIMENT: Final = "runspan_experiment_name=~`${experiment:regex}`"
#: One run.
RUN: Final = EXPERIMENT + ", runspan_run_id=~`${run:regex}`"
#: The chosen ranks of one run.
RANKS: Final = RUN + ", runspan_rank=~`${rank:regex}`"
#: The chosen metric keys; beside one of the others.
KEY: Final = "runspan_metric_key=~`${key:regex}`"
#: What tells runs apart.
BY_RUN: Final = "runspan_experiment_name, runspan_run_id"


def newest(series: str) -> str:
    """Return PromQL for the last values in the dashboard's time range, also of series that have ended."""
    return f"last_over_time({series}[$__range])"


def in_rank_order(expr: str) -> str:
    """Return PromQL with one series a rank and a label ``rank`` of four digits, by which text sorts as numbers do."""
    for digits in range(1, 4):
        zeros = "0" * (4 - digits)
        expr = f'label_replace({expr}, "rank", "{zeros}$1", "runspan_rank", "([0-9]{{{digits}}})")'
    return f'max by (rank) (label_replace({expr}, "rank", "$1", "runspan_rank", "([0-9]{{4,}})"))'
