"""What a Run is to be: every argument checked and every default decided, before anything is created."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runspan import ids
from runspan._env import EnvReader
from runspan._plain import text_of
from runspan._run.environment import default_entrypoint, script_stem
from runspan._run.lifecycle import open_runs
from runspan._run.params import params_of
from runspan._run.values import describe
from runspan.config import TracingConfig
from runspan.distributed import ParentRank, RankContext, parent_of, resolve_run_id
from runspan.errors import ConfigError
from runspan.redaction import Redactor
from runspan.tracefile.meta import ExecutionPhase, TimingMode

__all__ = ["RunSpec", "checked_params", "checked_tags", "default_experiment", "experiment_id_of", "resolve_spec"]

_RESUME_MODES = ("never", "allow", "must")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A Run's identity and settings; see ``start_run`` for their meaning.

    ``experiment_name`` is None where the caller gave an id. ``parent`` is set in a helper process of a rank, which
    writes a child file and no attempt of its own.
    """

    run_id: str
    experiment_id: str
    experiment_name: str | None
    config: TracingConfig
    context: RankContext
    parent: ParentRank | None
    resume: str
    name: str | None
    group: str | None
    params: dict[str, Any]
    tags: dict[str, str]
    entrypoint: str
    phase: ExecutionPhase
    device: str
    correlation_id: str
    timing_mode: TimingMode
    candle_version: str | None
    traceparent: str | None
    redactor: Redactor


def default_experiment(environ: Mapping[str, str]) -> str:
    """Return ``RUNSPAN_EXPERIMENT``, else the entrypoint's script stem."""
    return EnvReader(environ).text("RUNSPAN_EXPERIMENT") or script_stem()


def resolve_spec(
    *,
    experiment_id: str,
    experiment_name: str | None,
    config: TracingConfig | None,
    rank_context: RankContext | None,
    name: str | None,
    group: str | None,
    run_id: str | None,
    resume: str,
    params: Any,
    tags: Mapping[str, Any] | None,
    entrypoint: str | None,
    phase: str,
    device: str,
    correlation_id: str | None,
    timing_mode: str,
    candle_version: str | None,
) -> RunSpec:
    """Check the arguments and fill in what the environment and the launcher know.

    Raises:
        ConfigError: an argument or a variable cannot be used; the message names it and says what it takes.
    """
    environ = os.environ
    if config is not None and not isinstance(config, TracingConfig):
        raise ConfigError(f"config={config!r} cannot be used: it takes a TracingConfig")
    if rank_context is not None and not isinstance(rank_context, RankContext):
        raise ConfigError(f"rank_context={rank_context!r} cannot be used: it takes a RankContext")
    if resume not in _RESUME_MODES:
        raise ConfigError(f"resume={resume!r} cannot be used: it takes {', '.join(_RESUME_MODES)}")
    if not isinstance(experiment_id, str) or not experiment_id:
        raise ConfigError(
            f"experiment_id={experiment_id!r} cannot be used: it takes an id as create_experiment returns"
        )
    if device is None:
        raise ConfigError("device=None cannot be used: it takes a non-empty string")
    for argument, value in (
        ("name", name),
        ("group", group),
        ("entrypoint", entrypoint),
        ("correlation_id", correlation_id),
        ("candle_version", candle_version),
        ("device", device),
    ):
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(f"{argument}={value!r} cannot be used: it takes a non-empty string")
    config = TracingConfig.from_env(environ) if config is None else config
    context = RankContext.from_env(environ) if rank_context is None else rank_context
    parent = parent_of(environ)
    if parent is not None and not parent.owns(context):
        parent = None
    resolved_id = _run_id(run_id, context, is_child=parent is not None)
    if parent is not None:
        context = RankContext(
            parent.rank,
            parent.world_size,
            local_rank=context.local_rank if context.world_size > 1 else None,
            attempt=parent.attempt,
            launcher=context.launcher,
            host=context.host,
        )
    redactor = Redactor(config.redact)
    return RunSpec(
        run_id=resolved_id,
        experiment_id=experiment_id,
        experiment_name=experiment_name,
        config=config,
        context=context,
        parent=parent,
        resume=resume,
        name=name,
        group=group,
        params=checked_params(params, redactor) if params is not None else {},
        tags=checked_tags(tags, redactor) if tags is not None else {},
        entrypoint=default_entrypoint() if entrypoint is None else entrypoint,
        phase=ExecutionPhase.parse(phase),
        device=device,
        correlation_id=resolved_id if correlation_id is None else correlation_id,
        timing_mode=TimingMode.parse(timing_mode),
        candle_version=candle_version,
        traceparent=config.otel.traceparent,
        redactor=redactor,
    )


def checked_params(params: Any, redactor: Redactor) -> dict[str, Any]:
    """Return parameters as plain values, secrets hidden.

    Raises:
        ConfigError: they are no mapping, Namespace or dataclass.
    """
    try:
        return redactor.redact_mapping(params_of(params))
    except Exception as error:  # a foreign mapping's methods may raise anything
        raise ConfigError(f"params cannot be used: {error}") from error


def checked_tags(tags: Any, redactor: Redactor) -> dict[str, str]:
    """Return tags as strings, secrets hidden.

    Raises:
        ConfigError: they are no mapping.
    """
    if not isinstance(tags, Mapping):
        raise ConfigError(f"tags={describe(tags)} cannot be used: they take a mapping of strings")
    return redactor.redact_mapping({text_of(key): text_of(value) for key, value in tags.items()})


def _run_id(given: str | None, context: RankContext, *, is_child: bool) -> str:
    run_id = resolve_run_id(os.environ, context, given)
    if given is not None or is_child:
        return run_id
    ordinal = open_runs.count_unnamed()
    # A single process without any id has made a new one, which needs no number.
    is_new = context.world_size == 1 and resolve_run_id(os.environ, context) != run_id
    return run_id if ordinal == 1 or is_new else f"{run_id}.{ordinal}"


def experiment_id_of(name: str) -> str:
    """Return an experiment's id.

    Raises:
        ConfigError: the name is no non-empty string.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"experiment={name!r} cannot be used: it takes a non-empty name")
    return ids.experiment_id(name)
