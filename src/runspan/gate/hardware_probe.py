"""What the machine at hand is, and what state it is in: NVML where there is a GPU, else the kernel's files.

What cannot be read is absent from a reading, never zero: unmeasured is not healthy.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runspan.gate.hardware import Hardware
from runspan.usage import NvmlDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CpuState", "GpuState", "HardwareProbe", "MachineState"]

_UNKNOWN = "unknown"
_KHZ_PER_MHZ = 1000
#: NVML's bits of why a GPU's clock is not what it could be, in the words of a concern.
_THROTTLE_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


class CpuState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The processors at one moment.

    Attributes:
        cpus: how many this process may use.
        load_1m: processes that ran or wanted to, mean of the last minute.
        clock_mhz: median clock of all processors, MHz.
        governors: how the kernel chooses the clocks.
        throttle_events: how often heat has slowed a core or package since boot, all counters summed.
    """

    cpus: int | None = None
    load_1m: float | None = None
    clock_mhz: float | None = None
    governors: list[str] = []
    throttle_events: int | None = None


class GpuState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at one moment.

    Attributes:
        uuid: the device's own id.
        temperature_c: degrees Celsius.
        util: 0..1.
        sm_clock_mhz: clock of the streaming multiprocessors, MHz.
        throttle_reasons: why the clock is below what it could be; None: the driver does not tell.
        thermal_throttled_ns: for how long heat has slowed it since the driver was loaded.
    """

    uuid: str
    temperature_c: int | None = None
    util: float | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: list[str] | None = None
    thermal_throttled_ns: int | None = None


class MachineState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine at one moment; ``gpus`` is empty without one."""

    cpu: CpuState
    gpus: list[GpuState] = []


class HardwareProbe:
    """Reads the machine that this process runs on.

    Args:
        visible_devices: ``CUDA_VISIBLE_DEVICES``; None: every GPU is the process's.
        proc: where the kernel shows processes.
        sys: where it shows devices.
    """

    def __init__(
        self, *, visible_devices: str | None = None, proc: Path = Path("/proc"), sys: Path = Path("/sys")
    ) -> None:
        self._proc = proc
        self._sys = sys
        self._gpus = [NvmlDevice(entry) for entry in _device_entries(visible_devices)]

    def fingerprint(self) -> Hardware:
        """Say what the machine is; ``unknown`` where neither NVML nor the kernel tells."""
        names = [name for gpu in self._gpus if (name := gpu.query(_name)) is not None]
        if not names:
            model = self._cpu_model()
            gpu = _UNKNOWN if model is None else f"cpu:{model}"
            return Hardware(gpu=gpu, driver="", source=_UNKNOWN if model is None else "kernel")
        return Hardware(
            gpu=" + ".join(sorted(set(names))),
            driver=self._gpus[0].query(_driver) or "",
            sm_clock_mhz=self._gpus[0].query(_locked_clock),
            gpu_count=len(names),
            source="nvml",
        )

    def state(self) -> MachineState:
        """Read the state of processors and GPUs."""
        return MachineState(cpu=self._cpu_state(), gpus=[state for gpu in self._gpus if (state := _gpu_state(gpu))])

    def _cpu_state(self) -> CpuState:
        governors = {text for path in self._cpu_files("cpufreq/scaling_governor") if (text := _text(path))}
        counters = [
            number
            for name in ("core_throttle_count", "package_throttle_count")
            for path in self._cpu_files(f"thermal_throttle/{name}")
            if (number := _number(path)) is not None
        ]
        load = (_text(self._proc / "loadavg") or "").split()
        return CpuState(
            cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            load_1m=_float(load[0]) if load else None,
            clock_mhz=self._clock_mhz(),
            governors=sorted(governors),
            throttle_events=sum(counters) if counters else None,
        )

    def _clock_mhz(self) -> float | None:
        clocks = [
            khz / _KHZ_PER_MHZ
            for path in self._cpu_files("cpufreq/scaling_cur_freq")
            if (khz := _number(path)) is not None
        ]
        if not clocks:
            clocks = [mhz for text in self._cpu_info("cpu MHz") if (mhz := _float(text)) is not None]
        return statistics.median(clocks) if clocks else None

    def _cpu_model(self) -> str | None:
        named = next(iter(self._cpu_info("model name")), None)
        board = _text(self._sys / "firmware/devicetree/base/model")  # Arm: the kernel names boards, no processors
        return named or (board.rstrip("\0") if board else None)

    def _cpu_info(self, key: str) -> Sequence[str]:
        lines = (_text(self._proc / "cpuinfo") or "").splitlines()
        pairs = (line.partition(":") for line in lines)
        return [value.strip() for name, _, value in pairs if name.strip() == key and value.strip()]

    def _cpu_files(self, name: str) -> Sequence[Path]:
        return sorted((self._sys / "devices/system/cpu").glob(f"cpu[0-9]*/{name}"))


def _device_entries(visible_devices: str | None) -> Sequence[str]:
    """Return the process's GPUs as NVML knows them, numbers or UUIDs."""
    if visible_devices is None:
        count = NvmlDevice("0").query(lambda nvml, _: int(nvml.nvmlDeviceGetCount()))
        return [str(index) for index in range(count or 0)]
    entries = []
    for entry in map(str.strip, visible_devices.split(",")):
        if not entry or entry.startswith("-"):  # CUDA sees none from there on
            break
        entries.append(entry)
    return entries


def _gpu_state(gpu: NvmlDevice) -> GpuState | None:
    usage = gpu.usage()
    if usage is None:
        return None
    bits = gpu.query(_throttle_bits)
    return GpuState(
        uuid=usage.uuid,
        temperature_c=usage.temperature_c,
        util=usage.util,
        sm_clock_mhz=gpu.query(lambda nvml, handle: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        throttle_reasons=None if bits is None else _reasons(bits),
        thermal_throttled_ns=gpu.query(_thermal_ns),
    )


def _reasons(bits: int) -> list[str]:
    return [name for bit, name in _THROTTLE_REASONS.items() if bits & bit]


def _name(nvml: Any, handle: Any) -> str:
    name = nvml.nvmlDeviceGetName(handle)
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _driver(nvml: Any, _handle: Any) -> str:
    version = nvml.nvmlSystemGetDriverVersion()
    return version.decode(errors="replace") if isinstance(version, bytes) else str(version)


def _locked_clock(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM))


def _throttle_bits(nvml: Any, handle: Any) -> int:
    return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _thermal_ns(nvml: Any, handle: Any) -> int:
    return int(nvml.nvmlDeviceGetViolationStatus(handle, nvml.NVML_PERF_POLICY_THERMAL).violationTime)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    try:
        return int(_text(path) or "")
    except ValueError:
        return None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
