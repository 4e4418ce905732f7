"""Whether a machine is fit to be measured before a run, and whether it stayed so until the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from runspan.gate.hardware import Check, HardwareStateReport, PostCheck

if TYPE_CHECKING:
    from runspan.gate.hardware_probe import GpuState, MachineState

__all__ = ["changes", "look_after", "look_before", "report"]

Sensitivity = Literal["speed", "correctness"]

#: Load from which others take so much of each processor that a timing shows it.
_BUSY_LOAD_PER_CPU = 0.5
#: How much of a GPU others may use before a run.
_BUSY_GPU = 0.1
#: What slows a GPU so much that its timings mean nothing.
_HARD_REASONS = frozenset({"hardware slowdown", "hardware thermal slowdown", "hardware power brake"})


def look_before(state: MachineState, sensitivity: Sensitivity) -> Check:
    """Decide whether to measure: ``refuse`` where a GPU's hardware is slowing it down, ``warn`` of other load.

    A run that only asks whether results are right proceeds whatever the state.
    """
    if sensitivity == "correctness":
        return Check("proceed")
    refused = [
        f"GPU {gpu.uuid} is slowed down: {', '.join(hard)}" for gpu in state.gpus if (hard := _hard_reasons(gpu))
    ]
    concerns = []
    cpu = state.cpu
    if cpu.load_1m is not None and cpu.cpus and cpu.load_1m / cpu.cpus > _BUSY_LOAD_PER_CPU:
        concerns.append(f"load {cpu.load_1m:g} on {cpu.cpus} processors: something else is running")
    for gpu in state.gpus:
        if gpu.util is not None and gpu.util > _BUSY_GPU:
            concerns.append(f"GPU {gpu.uuid} is {gpu.util:.0%} busy: something else is running")
        if soft := sorted(set(gpu.throttle_reasons or ()) - _HARD_REASONS):
            concerns.append(f"GPU {gpu.uuid} does not run at its full clock: {', '.join(soft)}")
    if refused:
        return Check("refuse", refused + concerns)
    return Check("warn", concerns) if concerns else Check("proceed")


def look_after(before: MachineState, after: MachineState, sensitivity: Sensitivity) -> PostCheck:
    """Decide whether the timings mean something: not where heat slowed the machine, unknown where nothing tells."""
    if sensitivity == "correctness":
        return PostCheck("not-applicable")
    invalid: list[str] = []
    unmeasured: list[str] = []
    if before.gpus:
        afterwards = {gpu.uuid: gpu for gpu in after.gpus}
        for gpu in before.gpus:
            _judge_gpu(gpu, afterwards.get(gpu.uuid), invalid, unmeasured)
    elif not _counted_on(before.cpu.throttle_events, after.cpu.throttle_events):
        unmeasured.append("the kernel shows no thermal throttling counters of the processors that count on")
    if (events := _risen(before.cpu.throttle_events, after.cpu.throttle_events)) is not None:
        invalid.append(f"heat slowed the processors down {events} times")
    if invalid:
        return PostCheck("invalid", invalid + unmeasured)
    return PostCheck("unknown", unmeasured) if unmeasured else PostCheck("valid")


def changes(before: MachineState, after: MachineState) -> dict[str, Any]:
    """Return by how much each figure that both readings have has risen, in their units."""
    cpu = _difference(msgspec.to_builtins(before.cpu), msgspec.to_builtins(after.cpu))
    afterwards = {gpu.uuid: gpu for gpu in after.gpus}
    gpus = [
        {"uuid": gpu.uuid, **_difference(msgspec.to_builtins(gpu), msgspec.to_builtins(afterwards[gpu.uuid]))}
        for gpu in before.gpus
        if gpu.uuid in afterwards
    ]
    return {"cpu": cpu, **({"gpus": gpus} if gpus else {})}


def report(before: MachineState, after: MachineState | None, sensitivity: Sensitivity) -> HardwareStateReport:
    """Put the readings around a run together.

    Its ``perf_class`` is ``full`` where both looks were clean, ``degraded`` where one of them was not, ``unknown``
    where something was not measured, and ``not-applicable`` where speed does not matter.

    Args:
        before: the machine before the run.
        after: the machine after it; None: it was not looked at again.
        sensitivity: what a bad state would spoil.
    """
    precheck = look_before(before, sensitivity)
    postcheck = None if after is None else look_after(before, after, sensitivity)
    return HardwareStateReport(
        sensitivity=sensitivity,
        before=msgspec.to_builtins(before),
        after=None if after is None else msgspec.to_builtins(after),
        delta=None if after is None else changes(before, after),
        precheck=precheck,
        postcheck=postcheck,
        perf_class=_perf_class(precheck, postcheck, sensitivity),
    )


def _perf_class(precheck: Check, postcheck: PostCheck | None, sensitivity: Sensitivity) -> str:
    if sensitivity == "correctness":
        return "not-applicable"
    if precheck.decision != "proceed" or (postcheck is not None and postcheck.validity == "invalid"):
        return "degraded"
    return "full" if postcheck is not None and postcheck.validity == "valid" else "unknown"


def _judge_gpu(before: GpuState, after: GpuState | None, invalid: list[str], unmeasured: list[str]) -> None:
    if after is None:
        unmeasured.append(f"GPU {before.uuid} cannot be read any more")
        return
    if not _counted_on(before.thermal_throttled_ns, after.thermal_throttled_ns):
        unmeasured.append(f"GPU {before.uuid} has no counter of thermal throttling that counts on")
    if after.throttle_reasons is None:
        unmeasured.append(f"GPU {before.uuid} does not tell why its clock is low")
    if (slowed_ns := _risen(before.thermal_throttled_ns, after.thermal_throttled_ns)) is not None:
        invalid.append(f"heat slowed GPU {before.uuid} down for {slowed_ns / 1e6:g} ms")
    if hard := _hard_reasons(after):
        invalid.append(f"GPU {before.uuid} is slowed down: {', '.join(hard)}")


def _hard_reasons(gpu: GpuState) -> list[str]:
    return sorted(_HARD_REASONS & set(gpu.throttle_reasons or ()))


def _counted_on(before: int | None, after: int | None) -> bool:
    """Whether a counter tells what happened in between: one that fell was reset."""
    return before is not None and after is not None and after >= before


def _risen(before: int | None, after: int | None) -> int | None:
    """Return by how much a counter has risen, None where it has not."""
    return after - before if before is not None and after is not None and after > before else None


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    return {
        key: after[key] - value
        for key, value in before.items()
        if isinstance(value, int | float) and isinstance(after.get(key), int | float)
    }
