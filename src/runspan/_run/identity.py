"""What a process says of itself in its telemetry: the run's ids, its Resource, the attributes of its long spans."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
from opentelemetry.trace import format_span_id, format_trace_id

from runspan import ids
from runspan.semconv import Attr
from runspan.telemetry.providers import RunIdentity, build_resource, parse_traceparent

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from runspan._run.environment import GitState
    from runspan._run.session import Session
    from runspan._run.spec import RunSpec

__all__ = ["Identity", "common_attributes", "rank_attributes", "run_attributes", "run_resource"]


class Identity(msgspec.Struct, frozen=True):
    """The ids of a run's trace, lower-case hex; all None when tracing is off.

    ``rank_span_id`` is the parent of last resort of this process's spans: its own ``rank`` span, or in a helper process
    the span that was current where it was started.
    """

    trace_id: str | None
    run_span_id: str | None
    rank_span_id: str | None

    @classmethod
    def of(cls, spec: RunSpec) -> Identity:
        """Derive the ids of a run, and draw its rank span's."""
        if not spec.config.tracing_enabled:
            return cls(None, None, None)
        trace_id, run_span_id = ids.run_trace_id(spec.run_id), ids.run_span_id(spec.run_id)
        rank_span_id = int.from_bytes(os.urandom(8), "big") or 1
        if spec.parent is not None:
            started_in = parse_traceparent(spec.traceparent)
            is_ours = started_in is not None and started_in.trace_id == trace_id
            rank_span_id = started_in.span_id if started_in is not None and is_ours else run_span_id
        return cls(format_trace_id(trace_id), format_span_id(run_span_id), format_span_id(rank_span_id))


def run_resource(spec: RunSpec, git: GitState, attempt: int) -> Resource:
    """Return the Resource of this process."""
    context = spec.context
    identity = RunIdentity(
        run_id=spec.run_id,
        experiment_id=spec.experiment_id,
        experiment_name=spec.experiment_name or spec.experiment_id,
        run_name=spec.name,
        run_group=spec.group,
        rank=context.rank,
        world_size=context.world_size,
        local_rank=context.local_rank,
        attempt=attempt,
        device=spec.device,
        host=context.host,
        pid=os.getpid(),
        vcs_revision=git.sha,
        vcs_url=git.remote_url,
    )
    otel = spec.config.otel
    return build_resource(identity, service_name=otel.service_name, resource_attributes=otel.resource_attributes)


def common_attributes(session: Session) -> dict[str, Any]:
    """Return what ``run``, ``rank`` and ``alert`` say alike."""
    return {
        Attr.RUN_ID: session.spec.run_id,
        Attr.RANK: session.spec.context.rank,
        Attr.ATTEMPT: session.attempt,
    }


def rank_attributes(session: Session) -> dict[str, Any]:
    """Return the attributes of the ``rank`` span."""
    context = session.spec.context
    return {
        **common_attributes(session),
        Attr.WORLD_SIZE: context.world_size,
        Attr.HOST: context.host,
        Attr.LOCAL_RANK: context.local_rank,
        Attr.LAUNCHER: str(context.launcher),
    }


def run_attributes(session: Session) -> dict[str, Any]:
    """Return the attributes that the ``run`` span starts with: the whole TraceRunMeta."""
    meta = session.meta.run_meta
    fields = msgspec.to_builtins(meta)
    del fields["tags"]
    return {
        **common_attributes(session),
        **{f"{Attr.TRACE_PREFIX}{name}": value for name, value in fields.items()},
        **{f"{Attr.TAG_PREFIX}{key}": value for key, value in meta.tags.items()},
        **({} if session.git.sha is None else {Attr.VCS_REVISION: session.git.sha}),
    }
