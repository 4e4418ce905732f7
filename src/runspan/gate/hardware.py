"""The machine that a benchmark ran on: its fingerprint, the key of its bounds, and its state around the run."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

__all__ = ["Check", "Hardware", "HardwareStateReport", "PostCheck", "gate_key"]

_CPU_PREFIX = "cpu:"
#: GPUs whose marketing names carry memory size and form: the part that tells the model, looked for in this order.
_GPU_MODELS = (
    *("gb300", "gb200", "b300", "b200", "gh200", "h200", "h100", "h20", "a100", "a800", "h800", "l40s", "l40", "l4"),
    *("mi355x", "mi350x", "mi325x", "mi300x", "mi300a", "mi250x", "mi250", "mi210"),
)
#: What a processor's name says that tells no model: trade marks, the clock, and the words every name has.
_CPU_NOISE = re.compile(r"\((?:r|tm|c)\)|@.*$|\b(?:cpu|processor)\b|\b\d+-core\b", re.IGNORECASE)


class Hardware(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fingerprint of a machine.

    Attributes:
        gpu: the accelerator's name; without one ``cpu:`` and the processor's; ``unknown`` when neither can be told.
        driver: the driver's version; empty without a GPU.
        sm_clock_mhz: the clock that the streaming multiprocessors are locked to, MHz.
        gpu_count: how many accelerators the run had.
        source: how it was found out.
    """

    gpu: str = msgspec.field()
    driver: str = msgspec.field()
    sm_clock_mhz: float | None = None
    gpu_count: int | None = None
    source: str = msgspec.field()

    @property
    def gate_key(self) -> str:
        """The key that baselines are filed under."""
        return gate_key(self.gpu)


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether the machine was fit to be measured, before the run."""

    decision: Literal["proceed", "warn", "refuse"] = msgspec.field()
    concerns: list[str] = []


class PostCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether it still was, afterwards."""

    validity: Literal["valid", "unknown", "invalid", "not-applicable"] = msgspec.field()
    concerns: list[str] = []


class HardwareStateReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine's state around a run; what is absent was not measured, which does not make it healthy.

    Attributes:
        sensitivity: what a bad state would spoil.
        before, after, delta: readings, as JSON.
        precheck: the look before the run.
        postcheck: the look after it.
        perf_class: the class of performance that the state allows.
    """

    sensitivity: Literal["speed", "correctness"] = msgspec.field()
    before: Any = msgspec.field()
    after: Any = None
    delta: Any = None
    precheck: Check = msgspec.field()
    postcheck: PostCheck | None = None
    perf_class: str = msgspec.field()


def gate_key(gpu: str) -> str:
    """Return the key of a machine whose accelerator, or ``cpu:`` and processor, has this name."""
    if gpu.startswith(_CPU_PREFIX):
        model = _CPU_NOISE.sub(" ", gpu.removeprefix(_CPU_PREFIX)).lower()
        return "cpu-" + (re.sub(r"[^a-z0-9.]+", "-", model).strip("-") or "unknown")
    words = re.findall(r"[a-z0-9]+", gpu.lower())
    name = "".join(word for word in words if word not in {"nvidia", "amd"})
    return next((model for model in _GPU_MODELS if model in words), name) or "unknown"
