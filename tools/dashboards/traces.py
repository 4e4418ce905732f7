"""A panel that lists traces of Jaeger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.cog import builder, variants
from grafana_foundation_sdk.models import common as common_models

from dashboards.sources import JAEGER_UID

__all__ = ["JAEGER", "trace_list"]

JAEGER: Final = common_models.DataSourceRef(type_val="jaeger", uid=JAEGER_UID)


@dataclass(frozen=True, slots=True)
class _Search(variants.Dataquery):
    """A search as Grafana's Jaeger source takes it.

    Attributes:
        service: the service whose traces are searched.
        tags: what they must carry, in logfmt.
        limit: how many are listed.
    """

    service: str
    tags: str
    limit: int

    def to_json(self) -> dict[str, object]:
        """Return the query as it stands in a dashboard."""
        return {
            "datasource": JAEGER,
            "refId": "A",
            "queryType": "search",
            "service": self.service,
            "tags": self.tags,
            "limit": self.limit,
        }


@dataclass(frozen=True, slots=True)
class _SearchBuilder(builder.Builder[variants.Dataquery]):
    search: _Search

    def build(self) -> variants.Dataquery:
        """Return the query."""
        return self.search


def trace_list(title: str, *, service: str, tags: str, width: int, height: int, description: str) -> table.Panel:
    """Return a table of traces, each of which opens.

    Args:
        title: its title.
        service: the service whose traces are searched; dashboard variables may stand in it.
        tags: what they must carry, in logfmt.
        width: of the dashboard's 24 columns.
        height: in rows of the dashboard.
        description: what to read from it.
    """
    return (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(JAEGER)
        .span(width)
        .height(height)
        .with_target(_SearchBuilder(_Search(service, tags, limit=20)))
    )
