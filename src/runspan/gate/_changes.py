"""How two versions of a repository's bounds differ, so that nobody moves one unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from runspan.gate.baseline import Baseline

__all__ = ["bounds_changes"]


def bounds_changes(base: Baseline, head: Baseline) -> tuple[str, ...]:
    """Say what differs, one line a value, in the order of hardware, model and benchmark."""
    before, after = _facts(base), _facts(head)
    lines = []
    for fact in sorted(before.keys() | after.keys()):
        if (old := before.get(fact)) != (new := after.get(fact)):
            key, model, benchmark_id, what = fact
            lines.append(f"{benchmark_id} ({key}, {model}) {what}: {old or 'none'} → {new or 'none'}")
    return tuple(lines)


def _facts(baseline: Baseline) -> dict[tuple[str, str, str, str], str]:
    facts = {}
    for key, models in baseline.entries.items():
        for model, entries in models.items():
            for benchmark_id, entry in entries.items():
                values: dict[str, object] = {"status": entry.status, "params": entry.params}
                values |= {"serve_overrides": entry.serve_overrides, "serve_env": entry.serve_env, "zero": entry.zero}
                values |= {f"aggregate of {metric}": rule for metric, rule in entry.aggregate.items()}
                values |= {f"bound on {metric}": _given(bound) for metric, bound in entry.bounds.items()}
                for what, value in values.items():
                    if value:
                        facts[key, model, benchmark_id, what] = _text(value)
    return facts


def _given(bound: msgspec.Struct) -> dict[str, float]:
    return {name: value for name, value in msgspec.structs.asdict(bound).items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={item}" for name, item in sorted(value.items()))
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
