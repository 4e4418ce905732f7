from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from runspan._otel_env import OtelSettings
from runspan._version import __version__
from runspan.ids import run_span_id, run_trace_id, service_instance_id
from runspan.semconv import SCHEMA_URL
from runspan.telemetry.providers import (
    RunIdentity,
    RunIdGenerator,
    build_resource,
    build_tracer_provider,
    decide_sampling,
    forced_ids,
    get_tracer,
    host_id,
    parse_traceparent,
)

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

_IDENTITY = RunIdentity(
    run_id="run-1",
    experiment_id="exp-1",
    experiment_name="digits",
    run_name="wide",
    run_group="sweep",
    rank=2,
    world_size=4,
    local_rank=1,
    attempt=3,
    device="cuda:1",
    host="node7",
    pid=4321,
    vcs_revision="abc123",
    vcs_url="https://example.org/repo.git",
)


class _Recorder(SimpleSpanProcessor):
    def __init__(self) -> None:
        super().__init__(InMemorySpanExporter())
        self.ended: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


def test_the_resource_tells_process_run_and_code(tmp_path: Path) -> None:
    """The Resource has every attribute of the specification, and the pinned schema."""
    (tmp_path / "machine-id").write_text("0123abcd\n")
    resource = build_resource(_IDENTITY, host_id_files=[tmp_path / "missing", tmp_path / "machine-id"])
    attributes = dict(resource.attributes)
    sdk = {key: attributes.pop(key) for key in list(attributes) if key.startswith("telemetry.sdk.")}
    assert attributes == {
        "service.name": "digits",
        "service.instance.id": service_instance_id("run-1", 2, 3),
        "host.name": "node7",
        "host.id": "0123abcd",
        "process.pid": 4321,
        "vcs.ref.head.revision": "abc123",
        "vcs.repository.url.full": "https://example.org/repo.git",
        "telemetry.distro.name": "runspan",
        "telemetry.distro.version": __version__,
        "runspan.run.id": "run-1",
        "runspan.run.name": "wide",
        "runspan.run.group": "sweep",
        "runspan.experiment.id": "exp-1",
        "runspan.experiment.name": "digits",
        "runspan.rank": 2,
        "runspan.world_size": 4,
        "runspan.local_rank": 1,
        "runspan.attempt": 3,
        "runspan.device": "cuda:1",
    }
    assert set(sdk) == {"telemetry.sdk.language", "telemetry.sdk.name", "telemetry.sdk.version"}
    assert resource.schema_url == SCHEMA_URL


def test_otel_variables_beat_defaults_but_not_the_identity() -> None:
    """OTEL_SERVICE_NAME beats OTEL_RESOURCE_ATTRIBUTES, which beat ours; runspan.* is ours alone."""
    given = {
        "service.name": "from-attributes",
        "deployment.environment.name": "lab",
        "host.name": "h",
        "runspan.rank": "9",
    }
    resource = build_resource(_IDENTITY, service_name="svc", resource_attributes=given)
    assert resource.attributes["service.name"] == "svc"
    assert resource.attributes["deployment.environment.name"] == "lab"
    assert resource.attributes["host.name"] == "h"
    assert resource.attributes["runspan.rank"] == 2
    assert build_resource(_IDENTITY, resource_attributes=given).attributes["service.name"] == "from-attributes"


def test_every_host_has_an_id(tmp_path: Path) -> None:
    """Case 14: the host's id is found on this machine; unreadable files are passed over, none gives none."""
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff")
    assert host_id()
    assert host_id([tmp_path / "empty", tmp_path / "binary", tmp_path]) is None


def test_spans_have_no_sdk_limits() -> None:
    """The SDK drops nothing of a span: 300 attributes and events are all there for the file."""
    recorder, generator = _Recorder(), RunIdGenerator()
    provider = build_tracer_provider(
        build_resource(_IDENTITY), sampled=True, processors=[recorder], id_generator=generator
    )
    with get_tracer(provider).start_as_current_span("s", attributes={f"a{n}": "x" * 9000 for n in range(300)}) as span:
        for _ in range(300):
            span.add_event("e", {f"b{n}": n for n in range(300)})
    (ended,) = recorder.ended
    assert len(ended.attributes or {}) == len(ended.events) == 300
    assert len(ended.events[0].attributes or {}) == 300
    assert ended.instrumentation_scope is not None
    assert ended.instrumentation_scope.name == "runspan"
    assert ended.instrumentation_scope.version == __version__
    assert ended.instrumentation_scope.schema_url == SCHEMA_URL


def test_the_process_environment_does_not_disable_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a run traces was decided from the injected settings; the SDK's look at os.environ does not count."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    recorder = _Recorder()
    provider = build_tracer_provider(build_resource(_IDENTITY), sampled=True, processors=[recorder])
    with get_tracer(provider).start_as_current_span("s", attributes={"a": 1, "b": 2}):
        pass
    assert len(recorder.ended[0].attributes or {}) == 2
    assert recorder.ended[0].context is not None
    assert recorder.ended[0].context.trace_flags.sampled


def test_unsampled_spans_are_recorded() -> None:
    """Our sampler turns DROP into RECORD_ONLY, so that the file has every span; also under a sampled remote parent."""
    recorder = _Recorder()
    tracer = get_tracer(build_tracer_provider(build_resource(_IDENTITY), sampled=False, processors=[recorder]))
    parent = SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(1))
    tracer.start_span("s", context=set_span_in_context(NonRecordingSpan(parent))).end()
    tracer.start_span("t").end()
    assert len(recorder.ended) == 2
    assert not any(span.context is not None and span.context.trace_flags.sampled for span in recorder.ended)


def test_forced_ids_apply_inside_only() -> None:
    """A span started inside forced_ids has them; the next one has random ids again."""
    recorder = _Recorder()
    tracer = get_tracer(build_tracer_provider(build_resource(_IDENTITY), sampled=True, processors=[recorder]))
    with forced_ids(trace_id=run_trace_id("r"), span_id=run_span_id("r")):
        run = tracer.start_span("run").get_span_context()
    other = tracer.start_span("other").get_span_context()
    assert (run.trace_id, run.span_id) == (run_trace_id("r"), run_span_id("r"))
    assert other.trace_id != run.trace_id
    assert other.span_id != run.span_id


def test_ids_do_not_follow_the_programs_seed() -> None:
    """A training that seeds the random module on all ranks does not make their span ids equal."""
    drawn = []
    for _ in range(2):
        random.seed(0)
        drawn.append(RunIdGenerator().generate_span_id())
    assert drawn[0] != drawn[1]
    assert not RunIdGenerator().is_trace_id_random()


def test_a_forked_child_draws_other_ids() -> None:
    """Parent and child, which share the generator's state, go on with different ids."""
    generator = RunIdGenerator()
    generator.generate_span_id()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, str(generator.generate_span_id()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        from_child = int(pipe.read())
    assert from_child != generator.generate_span_id()


_SAMPLED = SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(1))
_UNSAMPLED = SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(0))


@pytest.mark.parametrize(
    ("sampler", "ratio", "parent", "expected"),
    [
        ("always_on", 1.0, _UNSAMPLED, True),
        ("always_off", 1.0, _SAMPLED, False),
        ("parentbased_always_on", 1.0, None, True),
        ("parentbased_always_on", 1.0, _UNSAMPLED, False),
        ("parentbased_always_off", 1.0, None, False),
        ("parentbased_always_off", 1.0, _SAMPLED, True),
        ("traceidratio", 0.0, _SAMPLED, False),
        ("traceidratio", 1.0, None, True),
        ("parentbased_traceidratio", 0.0, _SAMPLED, True),
        ("parentbased_traceidratio", 0.0, None, False),
    ],
)
def test_the_standard_samplers_decide(sampler: str, ratio: float, parent: SpanContext | None, expected: bool) -> None:
    """OTEL_TRACES_SAMPLER and its argument mean what the standard says."""
    assert decide_sampling(OtelSettings(sampler=sampler, sampler_ratio=ratio), run_trace_id("r"), parent) is expected


def test_a_ratio_samples_runs_not_ranks() -> None:
    """About the ratio's part of runs is exported, each as a whole, because only the trace id decides."""
    settings = OtelSettings(sampler="traceidratio", sampler_ratio=0.25)
    sampled = sum(decide_sampling(settings, run_trace_id(f"run-{number}"), None) for number in range(1000))
    assert 180 < sampled < 320


def test_traceparent_is_read() -> None:
    """A valid TRACEPARENT gives its span, with its state."""
    found = parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
    assert found is not None
    assert found.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert found.span_id == 0xB7AD6B7169203331
    assert found.is_remote
    assert found.trace_flags.sampled
    assert found.trace_state.get("vendor") == "1"


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        "",
        "x",
        "00-0-0-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        f"00-{'0' * 32}-{'0' * 16}-01",
    ],
)
def test_a_malformed_traceparent_is_none(malformed: str | None) -> None:
    """Case 13: what is no traceparent gives none, even inside another span."""
    recorder = _Recorder()
    tracer = get_tracer(build_tracer_provider(build_resource(_IDENTITY), sampled=True, processors=[recorder]))
    with tracer.start_as_current_span("current"):
        assert parse_traceparent(malformed) is None
