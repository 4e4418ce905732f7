from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.semconv.schemas import Schemas

from runspan.semconv import INSTRUMENTS, SCHEMA_URL, InstrumentKind, MetricName, SpanName

if TYPE_CHECKING:
    from runspan.semconv import Instrument

_UNIT_SUFFIXES = {"s": "_seconds", "By": "_bytes", "Cel": "_celsius", "W": "_watts", "1": "_ratio"}


def _prometheus_name(instrument: Instrument) -> str:
    """Apply the rules of Prometheus' UnderscoreEscapingWithSuffixes."""
    name = instrument.name.replace(".", "_")
    suffix = _UNIT_SUFFIXES.get(instrument.unit, "")
    if instrument.unit == "1" and instrument.kind is not InstrumentKind.GAUGE:
        suffix = ""
    return name + suffix + ("_total" if instrument.kind is InstrumentKind.COUNTER else "")


def test_prometheus_names_follow_its_rules() -> None:
    """Each listed Prometheus name is what the translation makes of name, unit and kind."""
    assert {name: item.prometheus for name, item in INSTRUMENTS.items()} == {
        name: _prometheus_name(item) for name, item in INSTRUMENTS.items()
    }


def test_every_metric_name_is_listed_once() -> None:
    """The table holds each metric there is a name for, under distinct Prometheus names."""
    names = {value for key, value in vars(MetricName).items() if key.isupper()}
    assert set(INSTRUMENTS) == names
    assert len({item.prometheus for item in INSTRUMENTS.values()}) == len(INSTRUMENTS)


def test_no_label_tells_step_process_or_trace() -> None:
    """Step, pid, span and trace ids never become a metric's label: each value would be a series of its own."""
    words = {word for item in INSTRUMENTS.values() for label in item.attributes for word in label.split(".")}
    assert words.isdisjoint({"step", "pid", "trace", "span", "trace_id", "span_id"})


def test_the_schema_is_one_the_conventions_publish() -> None:
    """The pinned schema URL is a released version of the semantic conventions."""
    assert SCHEMA_URL in {schema.value for schema in Schemas}


def test_pending_spans_are_named_after_their_span() -> None:
    """The span that shows an open span carries its name and says that it started."""
    assert SpanName.pending("epoch") == "epoch (started)"
