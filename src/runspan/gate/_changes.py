"""How two versions of a repository's bounds and rules differ, so that nobody moves one unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from runspan.gate.baseline import Baseline, Benchmark, GateConfig

__all__ = ["bounds_changes", "rules_changes"]


def bounds_changes(base: Baseline, head: Baseline) -> tuple[str, ...]:
    """Say what differs, one line a value: declarations, then entries by hardware, model and benchmark."""
    lines = []
    for benchmark_id in sorted(base.benchmarks.keys() | head.benchmarks.keys()):
        then, now = (_declaration(baseline.benchmarks.get(benchmark_id)) for baseline in (base, head))
        if then != now:
            lines.append(f"{benchmark_id} declaration: {then} → {now}")
    before, after = _facts(base), _facts(head)
    for fact in sorted(before.keys() | after.keys()):
        if (old := before.get(fact)) != (new := after.get(fact)):
            key, model, benchmark_id, what = fact
            lines.append(f"{benchmark_id} ({key}, {model}) {what}: {old or 'none'} → {new or 'none'}")
    return tuple(lines)


def rules_changes(base: GateConfig, head: GateConfig) -> tuple[str, ...]:
    """Say what differs, one line a rule; the first rules of a repository are no change."""
    if not base.perf_paths:
        return ()
    pairs = zip(msgspec.to_builtins(base).items(), msgspec.to_builtins(head).values(), strict=True)
    return tuple(f"{name}: {_text(old) or 'none'} → {_text(new) or 'none'}" for (name, old), new in pairs if old != new)


def _declaration(benchmark: Benchmark | None) -> str:
    return "none" if benchmark is None else _text(_given(benchmark))


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
