"""Panels as this repository's dashboards draw them: one function a kind, each query with its legend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.sources import PROMETHEUS_UID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "PROMETHEUS",
    "RUN_STATES",
    "Column",
    "Query",
    "dashboard_builder",
    "firing_alerts",
    "label_variable",
    "lines",
    "number",
    "rank_heat_map",
    "records",
    "states",
]

PROMETHEUS: Final = common_models.DataSourceRef(type_val="prometheus", uid=PROMETHEUS_UID)

#: Text and colour of the codes of ``runspan:run_state:code``.
RUN_STATES: Final[Mapping[str, tuple[str, str]]] = {
    "1": ("running", "blue"),
    "2": ("success", "green"),
    "3": ("cancelled", "yellow"),
    "4": ("failed", "red"),
    "5": ("silent", "purple"),
}

#: Columns of a dashboard.
_COLUMNS = 24
_LINE_HEIGHT = 8
_NUMBER_HEIGHT = 4
_FILL_OPACITY = 8
#: Cells a heat map has at most from left to right.
_HEAT_MAP_COLUMNS = 120
_HEAT_MAP_COLOURS = 64


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel.

    Attributes:
        expr: PromQL; dashboard variables stand in it as backquoted ``${name:regex}``, which takes any characters.
        legend: what names its series, ``{{label}}`` for a label.
        exemplars: whether its points lead to traces.
    """

    expr: str
    legend: str = ""
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, by one query whose series are rows.

    Attributes:
        title: its heading.
        expr: PromQL, asked for one point in time.
        unit: Grafana's name of the unit.
        decimals: digits after the point; None: as many as needed.
        states: text and colour by value, for codes.
    """

    title: str
    expr: str
    unit: str = "short"
    decimals: int | None = None
    states: Mapping[str, tuple[str, str]] | None = None


def dashboard_builder(title: str, uid: str, description: str, *, time_from: str) -> dashboard.Dashboard:
    """Return an empty dashboard with a link to each of the others.

    Args:
        title: its title.
        uid: its fixed uid.
        description: what it answers.
        time_from: where its time range begins, as ``now-6h``.
    """
    others = (
        dashboard.DashboardLink("runspan")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["runspan"])
        .as_dropdown(as_dropdown=True)
        .include_vars(include_vars=True)
        .keep_time(keep_time=True)
    )
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["runspan"])
        .timezone("browser")
        .refresh("30s")
        .time(time_from, "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .links([others])
    )


def label_variable(
    name: str, label: str, selector: str, prometheus_label: str, *, multi: bool, newest_first: bool = False
) -> dashboard.QueryVariable:
    """Return a variable over the values of a label.

    Args:
        name: what queries call it.
        label: what people read.
        selector: PromQL; the series whose label values are listed.
        prometheus_label: the label.
        multi: whether several values, and all of them, can be chosen.
        newest_first: descending, as for ids that begin with a time.
    """
    query = f"label_values({selector}, {prometheus_label})"
    variable = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(PROMETHEUS)
        .query({"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_DESC if newest_first else models.VariableSort.NATURAL_ASC)
        .multi(multi)
        .include_all(multi)
    )
    if multi:
        everything = models.VariableOption(selected=True, text=["All"], value=["$__all"])
        variable = variable.all_value(".*").current(everything)
    return variable


def lines(
    title: str,
    queries: Sequence[Query],
    *,
    unit: str,
    width: int,
    description: str = "",
    stacked: bool = False,
    minimum: float | None = 0,
    points_only: bool = False,
    repeat: str | None = None,
) -> timeseries.Panel:
    """Return a panel of lines over time.

    Args:
        title: its title.
        queries: one or more series each.
        unit: Grafana's name of the unit.
        width: of the dashboard's 24 columns.
        description: what to read from it.
        stacked: whether the series add up.
        minimum: where the axis begins; None: where the data do.
        points_only: values that were measured now and then, which no line joins.
        repeat: the variable for each of whose values the panel is drawn.
    """
    legend = common.VizLegendOptions().show_legend(show_legend=True).calcs(["lastNotNull", "max"])
    legend = legend.display_mode(common_models.LegendDisplayMode.TABLE)
    legend = legend.placement(common_models.LegendPlacement.BOTTOM)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .unit(unit)
        .span(width)
        .height(_LINE_HEIGHT)
        .legend(legend)
        .tooltip(_all_series_tooltip())
        .line_width(1)
        .fill_opacity(_FILL_OPACITY)
    )
    if minimum is not None:
        panel = panel.min(minimum)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    if points_only:
        panel = panel.draw_style(common_models.GraphDrawStyle.POINTS).point_size(6)
    if repeat is not None:
        # The copies share the whole row.
        panel = panel.span(_COLUMNS).repeat(repeat).repeat_direction("h").max_per_row(_COLUMNS // width)
    for number_of_query, query in enumerate(queries):
        panel = panel.with_target(_range_query(query, number_of_query))
    return panel


def number(
    title: str,
    expr: str,
    *,
    width: int,
    unit: str = "short",
    description: str = "",
    warn_from: float | None = None,
    decimals: int | None = None,
    value_states: Mapping[str, tuple[str, str]] | None = None,
) -> stat.Panel:
    """Return a panel of one number.

    Args:
        title: its title.
        expr: PromQL, asked for one point in time.
        width: of the dashboard's 24 columns.
        unit: Grafana's name of the unit.
        description: what to read from it.
        warn_from: from this value on it is red.
        decimals: digits after the point; None: as many as needed.
        value_states: text and colour by value, for codes.
    """
    steps = [models.Threshold(value=None, color="text")]
    if warn_from is not None:
        steps.append(models.Threshold(value=warn_from, color="red"))
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .unit(unit)
        .span(width)
        .height(_NUMBER_HEIGHT)
        .no_value("-")
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(_instant_query(expr, 0).legend_format("__auto"))
    )
    if decimals is not None:
        panel = panel.decimals(decimals)
    if value_states is not None:
        panel = panel.mappings([_value_map(value_states)])
    return panel


def records(
    title: str,
    columns: Sequence[Column],
    *,
    labels: Mapping[str, str],
    height: int,
    description: str = "",
    width: int = _COLUMNS,
    link: tuple[str, str, str] | None = None,
    sort_by: str | None = None,
) -> table.Panel:
    """Return a table: a row for each set of labels, a column for each query.

    Args:
        title: its title.
        columns: the queries; a row that one of them lacks is empty there.
        labels: the heading of each label that is shown.
        height: in rows of the dashboard.
        description: what to read from it.
        width: of the dashboard's 24 columns.
        link: heading, text and address of a link on a column.
        sort_by: the heading by which rows are sorted, descending.
    """
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .span(width)
        .height(height)
        .no_value("")
        .filterable(filterable=True)
    )
    renamed = dict(labels)
    for position, column in enumerate(columns):
        query = _instant_query(column.expr, position).format(PromQueryFormat.TABLE)
        panel = panel.with_target(query)
        renamed[_value_field(position, len(columns))] = column.title
        properties = [models.DynamicConfigValue(id_val="unit", value=column.unit)]
        if column.decimals is not None:
            properties.append(models.DynamicConfigValue(id_val="decimals", value=column.decimals))
        if column.states is not None:
            properties.append(models.DynamicConfigValue(id_val="mappings", value=[_value_map(column.states)]))
            properties.append(models.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
        panel = panel.override_by_name(column.title, properties)
    if link is not None:
        heading, text, address = link
        panel = panel.override_by_name(
            heading, [models.DynamicConfigValue(id_val="links", value=[{"title": text, "url": address}])]
        )
    if sort_by is not None:
        panel = panel.sort_by([common.TableSortByFieldState().display_name(sort_by).desc(desc=True)])
    order = {name: place for place, name in enumerate(renamed)}
    return (
        # Time and the metric's name differ between queries, and would keep their rows apart.
        panel.with_transformation(
            models.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(renamed)}})
        )
        .with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            models.DataTransformerConfig(
                id_val="organize", options={"indexByName": order, "renameByName": renamed, "excludeByName": {}}
            )
        )
    )


def states(
    title: str,
    query: Query,
    *,
    value_states: Mapping[str, tuple[str, str]],
    height: int,
    width: int = _COLUMNS,
    description: str = "",
) -> statetimeline.Panel:
    """Return a panel of coloured bars over time, one a series.

    Args:
        title: its title.
        query: its series, of codes.
        value_states: text and colour of each code.
        height: in rows of the dashboard.
        width: of the dashboard's 24 columns.
        description: what to read from it.
    """
    return (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .span(width)
        .height(height)
        .mappings([_value_map(value_states)])
        .show_value(common_models.VisibilityMode.AUTO)
        .merge_values(merge_values=True)
        .with_target(_range_query(query, 0))
    )


def firing_alerts(title: str, selector: str, *, labels: Mapping[str, str], height: int = 7) -> table.Panel:
    """Return a table of the alerts that fire now.

    Args:
        title: its title.
        selector: matchers beside the alert's state.
        labels: the heading of each label that is shown.
        height: in rows of the dashboard.
    """
    expr = f'ALERTS{{alertstate="firing", {selector}}}'
    since = f"time() - (ALERTS_FOR_STATE{{{selector}}} and ignoring (alertstate) {expr})"
    return records(
        title, [Column("for", since, unit="s", decimals=0)], labels=labels, height=height, description="Empty is good."
    )


def rank_heat_map(title: str, expr: str, *, unit: str, width: int, height: int, description: str) -> heatmap.Panel:
    """Return a heat map with a row for each rank and time from left to right.

    Args:
        title: its title.
        expr: PromQL with a label ``rank``, which orders the rows.
        unit: Grafana's name of the cells' unit.
        width: of the dashboard's 24 columns.
        height: in rows of the dashboard.
        description: what to read from it.
    """
    colour = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_models.HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .fill("dark-orange")
        .scale(heatmap_models.HeatmapColorScale.LINEAR)
        .exponent(0.5)
        .steps(_HEAT_MAP_COLOURS)
    )
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .span(width)
        .height(height)
        .max_data_points(_HEAT_MAP_COLUMNS)
        .calculate(calculate=False)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common_models.HeatmapCellLayout.AUTO).value("value"))
        .cell_values(heatmap.CellValues().unit(unit))
        .color(colour)
        .y_axis(heatmap.YAxisConfig().axis_label("rank"))
        .tooltip(heatmap.HeatmapTooltip().mode(common_models.TooltipDisplayMode.SINGLE))
        .with_target(_range_query(Query(expr, "{{rank}}"), 0))
    )


def _all_series_tooltip() -> common.VizTooltipOptions:
    return (
        common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING)
    )


def _range_query(query: Query, position: int) -> prometheus.Dataquery:
    target = prometheus.Dataquery().datasource(PROMETHEUS).ref_id(_ref_id(position)).expr(query.expr).range()
    if query.legend:
        target = target.legend_format(query.legend)
    return target.exemplar(exemplar=True) if query.exemplars else target


def _instant_query(expr: str, position: int) -> prometheus.Dataquery:
    return prometheus.Dataquery().datasource(PROMETHEUS).ref_id(_ref_id(position)).expr(expr).instant()


def _ref_id(position: int) -> str:
    return chr(ord("A") + position)


def _value_field(position: int, queries: int) -> str:
    """Return what a table calls the value of a query: its letter stands there as soon as there are several."""
    return f"Value #{_ref_id(position)}" if queries > 1 else "Value"


def _value_map(value_states: Mapping[str, tuple[str, str]]) -> models.ValueMap:
    return models.ValueMap(
        options={
            value: models.ValueMappingResult(text=text, color=colour, index=index)
            for index, (value, (text, colour)) in enumerate(value_states.items())
        }
    )
