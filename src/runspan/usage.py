"""What this process, its machine and its device are busy with, by psutil, cgroups and NVML.

Every figure that cannot be measured is None, never 0, and nothing here raises into the run.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runspan.records import ResourceSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CgroupMemory", "GpuUsage", "NvmlDevice", "ProcessUsage", "SystemUsage", "UsageSampler", "cgroup_memory"]

T = TypeVar("T")

#: The devices that NVML knows.
_NVIDIA_DEVICES = frozenset({"cuda", "gpu"})
#: Limit, usage, and the field of memory.stat with the pages that can be dropped.
_CGROUP_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_CGROUP_V2 = ("memory.max", "memory.current", "inactive_file")
#: cgroup v1 writes "no limit" as the largest page-aligned 63-bit number.
_NO_LIMIT_FROM = 1 << 60
_MIN_CPU_SPAN_S = 0.1


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """This process.

    Attributes:
        memory_rss: resident memory, bytes.
        cpu_user_s: processor time in user mode since its start.
        cpu_system_s: processor time in the kernel since its start.
        threads: how many threads it has.
        open_files: how many file descriptors it has open.
    """

    memory_rss: int | None = None
    cpu_user_s: float | None = None
    cpu_system_s: float | None = None
    threads: int | None = None
    open_files: int | None = None


@dataclass(frozen=True, slots=True)
class SystemUsage:
    """This machine.

    Attributes:
        cpu_util: of all processors since the sample before, 0..1; None before anything can be told.
        memory_used: bytes in use, by the cgroup where it has a limit.
        memory_total: the cgroup's limit if one is set, else the host's memory, bytes.
    """

    cpu_util: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """This rank's device.

    Attributes:
        uuid: the device's own id, the same whichever number a process sees it under.
        name: the model.
        util: 0..1.
        memory_used: bytes.
        memory_total: bytes.
        temperature_c: degrees Celsius.
        power_w: watts.
    """

    uuid: str
    name: str | None = None
    util: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """The tightest memory limit among the process's cgroups, with what is in use below it; both in bytes.

    ``used`` leaves out file pages that the kernel can drop at once, as ``docker stats`` does.
    """

    used: int
    limit: int


class UsageSampler:
    """Samples usage for one rank, from any thread; NVML is loaded by the first sample that needs it.

    Args:
        local_rank: the rank's number on its node, which picks the device where ``device`` gives no number.
        device: the run's device: ``cpu``, ``cuda``, ``cuda:1``.
        visible_devices: ``CUDA_VISIBLE_DEVICES``, by which the process numbers its devices; None: all are visible.
        proc: where the kernel shows processes.
        cgroup_root: where control groups are mounted.
    """

    def __init__(
        self,
        local_rank: int = 0,
        device: str = "cpu",
        *,
        visible_devices: str | None = None,
        proc: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._proc = proc
        self._cgroup_root = cgroup_root
        self._gpu = NvmlDevice(_device_entry(local_rank, device, visible_devices))
        self._cpu_times = _measured(_cpu_times)
        self._cpu_util: float | None = None

    def sample(self) -> ResourceSnapshot:
        """Return machine and device in one record."""
        system, gpu = self.system_usage(), self.gpu_usage()
        return ResourceSnapshot(
            gpu_util=None if gpu is None else gpu.util,
            cpu_util=system.cpu_util,
            memory_used=system.memory_used,
            memory_total=system.memory_total,
            gpu_memory_used=None if gpu is None else gpu.memory_used,
            gpu_memory_total=None if gpu is None else gpu.memory_total,
        )

    def process_usage(self) -> ProcessUsage:
        """Return the usage of the calling process, a forked child's own included."""
        import psutil  # noqa: PLC0415 - loaded when a run samples, not when runspan is imported

        process = psutil.Process()
        memory = _measured(process.memory_info)
        cpu = _measured(process.cpu_times)
        return ProcessUsage(
            memory_rss=None if memory is None else memory.rss,
            cpu_user_s=None if cpu is None else cpu.user,
            cpu_system_s=None if cpu is None else cpu.system,
            threads=_measured(process.num_threads),
            open_files=_measured(process.num_fds),
        )

    def system_usage(self) -> SystemUsage:
        """Return the machine's usage; the cgroup's memory where that has a limit."""
        import psutil  # noqa: PLC0415 - as above

        host = _measured(psutil.virtual_memory)
        used = None if host is None else host.total - host.available
        total = None if host is None else host.total
        cgroup = cgroup_memory(self._proc, self._cgroup_root)
        if cgroup is not None and (total is None or cgroup.limit < total):
            used, total = cgroup.used, cgroup.limit
        return SystemUsage(cpu_util=self._next_cpu_util(), memory_used=used, memory_total=total)

    def gpu_usage(self) -> GpuUsage | None:
        """Return the usage of this rank's device, None without one or without the ``gpu`` extra."""
        return self._gpu.usage()

    def _next_cpu_util(self) -> float | None:
        now, before = _measured(_cpu_times), self._cpu_times
        if now is None or before is None:
            return None
        total = now[1] - before[1]
        # The kernel counts in ticks of 10 ms: a shorter span would be noise.
        if total >= _MIN_CPU_SPAN_S:
            self._cpu_times = now
            self._cpu_util = min(1.0, max(0.0, (now[0] - before[0]) / total))
        return self._cpu_util


def _cpu_times() -> tuple[float, float]:
    """Return the busy and the total time of all processors together since boot, seconds."""
    import psutil  # noqa: PLC0415 - as above

    times = psutil.cpu_times()
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # is part of user and nice
    total = sum(times) - guest
    return total - times.idle - getattr(times, "iowait", 0.0), total


def _measured(measure: Callable[[], T]) -> T | None:
    """Return a measurement, None where the system does not give it."""
    try:
        return measure()
    except Exception:  # noqa: BLE001 - psutil and NVML raise their own errors, OSError, or what a driver thinks of
        return None


def cgroup_memory(proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> CgroupMemory | None:
    """Return the tightest memory limit of the process's cgroups (v1 or v2), None where none is set.

    Args:
        proc: where the kernel shows processes.
        root: where control groups are mounted.
    """
    try:
        memberships = (proc / "self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return None
    limits = []
    for membership in memberships:
        hierarchy, _, rest = membership.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            files, mount = _CGROUP_V2, root
        elif "memory" in controllers.split(","):
            files, mount = _CGROUP_V1, root / "memory"
        else:
            continue
        # In a container the path may be the host's, which is not mounted: the mount's root is then its own group.
        relative = Path(path.lstrip("/"))
        groups = [mount] if ".." in relative.parts else [mount / relative, *(mount / up for up in relative.parents)]
        limits += [limit for limit in (_memory_of(group, *files) for group in groups) if limit is not None]
    return min(limits, key=lambda memory: memory.limit, default=None)


def _memory_of(group: Path, limit_file: str, used_file: str, droppable: str) -> CgroupMemory | None:
    try:
        limit = int((group / limit_file).read_text())  # v2 writes "max" for none
        used = int((group / used_file).read_text())
    except (OSError, ValueError):
        return None
    if limit >= _NO_LIMIT_FROM:
        return None
    with contextlib.suppress(OSError, ValueError):
        fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = max(0, used - int(fields.get(droppable, 0)))
    return CgroupMemory(used, limit)


def _device_entry(local_rank: int, device: str, visible_devices: str | None) -> str | None:
    """Return the rank's device as NVML knows it: a number or a UUID; None where there is none."""
    kind, _, number = device.partition(":")
    if kind.lower() not in _NVIDIA_DEVICES:
        return None
    index = int(number) if number.isdecimal() else local_rank
    if visible_devices is None:
        return str(index)
    visible = [entry.strip() for entry in visible_devices.split(",")]
    if len(visible) == 1 and not number:
        index = 0  # the launcher shows each rank its own device only
    entry = visible[index] if index < len(visible) else ""
    return entry if entry and not entry.startswith("-") else None


class NvmlDevice:
    """One device by NVML, given up on for good when NVML or the device is not there.

    Args:
        entry: the device as NVML knows it, a number or a UUID; None: there is none.
    """

    def __init__(self, entry: str | None) -> None:
        self._entry = entry
        self._nvml: Any = None
        self._pid = 0

    def query(self, ask: Callable[[Any, Any], T]) -> T | None:
        """Return what ``ask(nvml, handle)`` measures, None where the device or its driver does not tell."""
        opened = self._opened()
        return None if opened is None else _measured(lambda: ask(*opened))

    def usage(self) -> GpuUsage | None:
        """Return the device's usage, None when it is not there."""
        opened = self._opened()
        if opened is None:
            return None
        nvml, handle = opened
        try:
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        except Exception:  # noqa: BLE001 - as in _opened
            self._entry = None
            return None
        rates = _measured(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = _measured(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        milliwatts = _measured(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return GpuUsage(
            uuid=uuid,
            name=_measured(lambda: _text(nvml.nvmlDeviceGetName(handle))),
            util=None if rates is None else rates.gpu / 100,
            memory_used=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            temperature_c=_measured(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            power_w=None if milliwatts is None else milliwatts / 1000,
        )

    def _opened(self) -> tuple[Any, Any] | None:
        """Return NVML and the device's handle."""
        if self._entry is None:
            return None
        try:
            nvml = self._loaded()
            handle = (
                nvml.nvmlDeviceGetHandleByIndex(int(self._entry))
                if self._entry.isdecimal()
                else nvml.nvmlDeviceGetHandleByUUID(self._entry)
            )
        except Exception:  # noqa: BLE001 - no package, no driver, no such device: unmeasured, whatever the reason
            self._entry = None
            return None
        return nvml, handle

    def _loaded(self) -> Any:
        """Return NVML, initialised in this process: a forked child must do so itself."""
        if self._pid != os.getpid():
            import pynvml  # noqa: PLC0415 - the gpu extra, which may not be installed

            pynvml.nvmlInit()
            self._nvml, self._pid = pynvml, os.getpid()
        return self._nvml


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
