"""Entries for ``bounds.toml`` that past records suggest, with the false-alarm rate that goes with them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal

import msgspec

from runspan.errors import GateError
from runspan.gate.noise import Proposal, propose_bound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runspan.gate.baseline import Baseline, BaselineEntry, Bound
    from runspan.gate.record import GateRecord

__all__ = ["EntryProposal", "propose_entries", "toml_of"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_UNKNOWN_HARDWARE = "unknown"
#: The model of a table that needs no mark to be its hardware's default.
_DEFAULT_MODEL = "default"


class EntryProposal(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that records of one hardware and model suggest.

    Attributes:
        benchmark_id: which benchmark.
        hardware_key: the machine.
        model: the model.
        params, serve_overrides: what all the records that were used have in common.
        proposals: by metric.
        git_shas: the commits of the records, newest first.
        false_alarm_rate: how likely the next record of the same code breaches one of the bounds, at most.
    """

    benchmark_id: str
    hardware_key: str
    model: str
    params: Mapping[str, str]
    serve_overrides: Mapping[str, str]
    proposals: Mapping[str, Proposal]
    git_shas: Sequence[str]
    false_alarm_rate: float


def propose_entries(
    benchmark_id: str,
    records: Sequence[GateRecord],
    baseline: Baseline,
    limits: Mapping[str, Literal["min", "max"]],
    *,
    newest: int | None = None,
) -> list[EntryProposal]:
    """Propose an entry for each hardware and model that has records.

    Used are the records that measured something that was committed, did not fail, and have the parameters and recipe
    overrides of the newest one; they are taken to be of code that is equally fast. Which end of a metric is bounded is
    not guessed: it is given, or the entry that there is has it.

    Args:
        benchmark_id: which benchmark.
        records: its records, newest first.
        baseline: the entries that there are.
        limits: by metric, which end is to be bounded.
        newest: how many records of each hardware and model to use; None: all.

    Raises:
        GateError: no record can be used, no end of any metric is known, or a metric is not in every record.
    """
    groups: dict[tuple[str, str], list[GateRecord]] = {}
    for record in records:
        key = record.hardware.gate_key
        if key == _UNKNOWN_HARDWARE or record.frame_status_failed() or record.verdict == "FAIL" or record.dirty_paths:
            continue
        model = record.target_model or baseline.default_models.get(key, _DEFAULT_MODEL)
        group = groups.setdefault((key, model), [])
        if not group or (record.params, record.serve_overrides) == (group[0].params, group[0].serve_overrides):
            group.append(record)
    if not groups:
        raise GateError(
            f"benchmark {benchmark_id!r} has no record to go by, one that is clean and did not fail: run"
            f" `runspan bench run {benchmark_id} --gate`"
        )
    return [
        _proposed((benchmark_id, key, model), group[:newest], baseline.entry(key, model, benchmark_id), limits)
        for (key, model), group in sorted(groups.items())
    ]


def toml_of(proposal: EntryProposal) -> str:
    """Write an entry as ``bounds.toml`` has it, with what its bounds rest on as a comment."""
    shas = proposal.git_shas
    path = [*("hardware", proposal.hardware_key, proposal.model), "benchmarks", proposal.benchmark_id]
    lines = [
        f"# From {len(shas)} record{'s'[: len(shas) != 1]}, {shas[-1]} to {shas[0]}: the next one of the same code",
        f"# breaches a bound with probability {proposal.false_alarm_rate:.1%} at most.",
        f"[{_table(path)}]",
        'status = "measured"',
    ]
    for name, pinned in (("params", proposal.params), ("serve_overrides", proposal.serve_overrides)):
        if pinned:
            pairs = ", ".join(f"{_key(key)} = {_string(value)}" for key, value in sorted(pinned.items()))
            lines.append(f"{name} = {{ {pairs} }}")
    lines.append(f"[{_table([*path, 'bounds'])}]")
    lines += [f"{_key(metric)} = {_bound(item.bound)}" for metric, item in sorted(proposal.proposals.items())]
    return "\n".join(lines) + "\n"


def _proposed(
    place: tuple[str, str, str],
    records: Sequence[GateRecord],
    entry: BaselineEntry | None,
    limits: Mapping[str, Literal["min", "max"]],
) -> EntryProposal:
    benchmark_id, key, model = place
    ends = {**_known_ends(entry), **limits}
    if not ends:
        raise GateError(
            f"which end of a metric is bounded is not guessed: give --max or --min with one of"
            f" {', '.join(sorted(records[0].metrics))}"
        )
    proposals = {}
    for metric, end in ends.items():
        values = [float(record.metrics[metric]) for record in records if metric in record.metrics]
        if len(values) != len(records):
            raise GateError(
                f"{len(records) - len(values)} of {len(records)} records on {key} have no metric {metric!r}"
            )
        proposals[metric] = propose_bound(values, end)
    return EntryProposal(
        benchmark_id=benchmark_id,
        hardware_key=key,
        model=model,
        params=dict(records[0].params),
        serve_overrides=dict(records[0].serve_overrides),
        proposals=proposals,
        git_shas=[record.git_sha for record in records],
        false_alarm_rate=min(1.0, sum(proposal.false_alarm_rate for proposal in proposals.values())),
    )


def _known_ends(entry: BaselineEntry | None) -> dict[str, Literal["min", "max"]]:
    """Return the bounded ends of an entry; a metric that is bounded on both is left to people."""
    bounds = {} if entry is None else entry.bounds
    one_sided = {metric: bound for metric, bound in bounds.items() if (bound.min is None) != (bound.max is None)}
    return {metric: "max" if bound.min is None else "min" for metric, bound in one_sided.items()}


def _bound(bound: Bound) -> str:
    given = {name: value for name, value in msgspec.structs.asdict(bound).items() if value is not None}
    if not bound.noise:
        del given["noise"]
    return "{ " + ", ".join(f"{name} = {value!r}" for name, value in given.items()) + " }"


def _table(path: Sequence[str]) -> str:
    return ".".join(map(_key, path))


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    """Write a TOML basic string: JSON's escapes are TOML's, but for DEL, which TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
