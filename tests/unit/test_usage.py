from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runspan.records import ResourceSnapshot
from runspan.usage import CgroupMemory, UsageSampler, cgroup_memory

GIB = 1 << 30


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _group(folder: Path, *, limit: str, used: int, inactive: int = 0, version: int = 2) -> None:
    names = (
        ("memory.max", "memory.current", "")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    )
    _write(folder / names[0], f"{limit}\n")
    _write(folder / names[1], f"{used}\n")
    _write(folder / "memory.stat", f"anon 1\n{names[2]}inactive_file {inactive}\n")


def test_a_sample_of_this_machine_is_in_range() -> None:
    """Memory and processor figures of the real machine are plausible, and a CPU run has no GPU figures."""
    sampler = UsageSampler()
    snapshot = sampler.sample()
    assert snapshot.memory_used is not None
    assert snapshot.memory_total is not None
    assert 0 < snapshot.memory_used <= snapshot.memory_total
    assert snapshot.cpu_util is None or 0 <= snapshot.cpu_util <= 1
    assert (snapshot.gpu_util, snapshot.gpu_memory_used, snapshot.gpu_memory_total) == (None, None, None)


def test_process_figures_are_this_processs() -> None:
    """Threads, files, memory and processor time are the calling process's own."""
    sampler = UsageSampler()
    before = sampler.process_usage()
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    with Path("/dev/null").open():
        during = sampler.process_usage()
    release.set()
    thread.join()
    assert before.threads is not None
    assert before.open_files is not None
    assert (during.threads, during.open_files) == (before.threads + 1, before.open_files + 1)
    assert during.memory_rss
    assert during.cpu_user_s
    assert during.cpu_system_s is not None


def test_processor_utilisation_counts_between_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy over total time since the last sample; a span too short to tell gives the figure before it."""
    import psutil  # noqa: PLC0415 - replaced below, as usage imports it

    times = iter([(0.0, 0.0), (3.0, 1.0), (3.01, 1.01), (3.01, 11.0)])
    monkeypatch.setattr(psutil, "cpu_times", lambda: _CpuTimes(next(times)))
    sampler = UsageSampler()
    readings = [sampler.system_usage().cpu_util for _ in range(3)]
    assert readings[0] == 0.75
    assert readings[1] == 0.75
    assert readings[2] == pytest.approx(0.01 / 10.01)


class _CpuTimes(tuple[float, ...]):
    """User and idle time, as psutil's named tuple."""

    __slots__ = ()

    @property
    def idle(self) -> float:
        return self[1]


def test_the_memory_limit_is_the_tightest_of_a_v2_hierarchy(tmp_path: Path) -> None:
    """A limit set on a group above counts; file pages that can be dropped do not."""
    proc, root = tmp_path / "proc", tmp_path / "cg"
    _write(proc / "self/cgroup", "0::/jobs/mine/step\n")
    _group(root / "jobs/mine/step", limit="max", used=100)
    _group(root / "jobs/mine", limit=str(2 * GIB), used=3000, inactive=1000)
    _group(root / "jobs", limit=str(8 * GIB), used=9000)
    assert cgroup_memory(proc, root) == CgroupMemory(2000, 2 * GIB)


def test_the_memory_limit_of_a_v1_container_is_at_the_mounts_root(tmp_path: Path) -> None:
    """Where the path in /proc is the host's, the mount's root is the container's own group."""
    proc, root = tmp_path / "proc", tmp_path / "cg"
    _write(proc / "self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/0123\n0::/\n")
    _group(root / "memory", limit=str(GIB), used=500, inactive=900, version=1)
    assert cgroup_memory(proc, root) == CgroupMemory(0, GIB)


@pytest.mark.parametrize(
    ("membership", "limit"),
    [("0::/a", "max"), ("0::/a", str(1 << 62)), ("0::/../..", "max"), ("garbage", "5"), ("", "5")],
)
def test_no_limit_is_none(tmp_path: Path, membership: str, limit: str) -> None:
    """An unlimited or unreadable group gives None, never a figure."""
    _write(tmp_path / "proc/self/cgroup", membership)
    _group(tmp_path / "cg/a", limit=limit, used=1)
    assert cgroup_memory(tmp_path / "proc", tmp_path / "cg") is None
    assert cgroup_memory(tmp_path / "nowhere", tmp_path / "cg") is None


def test_memory_is_the_cgroups_where_it_is_below_the_hosts(tmp_path: Path) -> None:
    """Used and total are both the group's under a limit; a limit above the host's memory is none."""
    proc, root = tmp_path / "proc", tmp_path / "cg"
    _write(proc / "self/cgroup", "0::/a\n")
    _group(root / "a", limit="1000000", used=2500)
    limited = UsageSampler(proc=proc, cgroup_root=root).system_usage()
    assert (limited.memory_used, limited.memory_total) == (2500, 1_000_000)
    _group(root / "a", limit=str(1 << 59), used=2500)
    host = UsageSampler(proc=proc, cgroup_root=root).system_usage()
    assert host.memory_total is not None
    assert host.memory_total < 1 << 59


class _FakeNvml:
    """NVML as nvidia-ml-py offers it, for a machine of four devices; the real library needs the hardware."""

    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        self.inits = 0
        self.unsupported: set[str] = set()

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's spelling
        self.inits += 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index > 3:
            raise RuntimeError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return int(uuid.removeprefix("GPU-"))

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}".encode(),
            "nvmlDeviceGetName": lambda _: "H200",
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=42),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=3, total=9),
            "nvmlDeviceGetTemperature": lambda _handle, _sensor: 61,
            "nvmlDeviceGetPowerUsage": lambda _: 250_500,
        }
        if name in self.unsupported:
            raise RuntimeError("Not Supported")
        return answers[name]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> _FakeNvml:
    """Put a fake NVML where usage imports it from."""
    fake = _FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.mark.parametrize(
    ("local_rank", "device", "visible", "uuid"),
    [
        (2, "cuda", None, "GPU-2"),
        (2, "cuda:1", None, "GPU-1"),
        (1, "cuda", "3,0", "GPU-0"),
        (3, "cuda", "2", "GPU-2"),
        (0, "cuda:1", "GPU-3, GPU-2", "GPU-2"),
        (0, "cpu", None, None),
        (0, "mps", None, None),
        (0, "cuda", "", None),
        (0, "cuda", "-1", None),
        (0, "cuda:5", "0,1", None),
        (9, "cuda", None, None),
    ],
)
@pytest.mark.usefixtures("nvml")
def test_the_device_is_this_ranks(local_rank: int, device: str, visible: str | None, uuid: str | None) -> None:
    """The device's number, else the local rank, counts among the devices that the process sees."""
    gpu = UsageSampler(local_rank, device, visible_devices=visible).gpu_usage()
    assert (None if gpu is None else gpu.uuid) == uuid


def test_a_devices_figures_have_their_units(nvml: _FakeNvml) -> None:
    """Utilisation is 0..1, power in watts, and what a device does not support is None alone."""
    nvml.unsupported = {"nvmlDeviceGetTemperature"}
    sampler = UsageSampler(0, "cuda")
    gpu = sampler.gpu_usage()
    assert gpu is not None
    assert (gpu.util, gpu.memory_used, gpu.memory_total, gpu.temperature_c, gpu.power_w) == (0.42, 3, 9, None, 250.5)
    assert gpu.name == "H200"
    snapshot = sampler.sample()
    assert (snapshot.gpu_util, snapshot.gpu_memory_used, snapshot.gpu_memory_total) == (0.42, 3, 9)
    assert nvml.inits == 1


def test_a_forked_child_initialises_nvml_itself(nvml: _FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle of the parent's NVML is not used under another pid."""
    sampler = UsageSampler(0, "cuda")
    sampler.gpu_usage()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert sampler.gpu_usage() is not None
    assert nvml.inits == 2


def test_without_nvml_everything_else_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing gpu extra leaves the GPU's figures out and raises nothing."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    snapshot = UsageSampler(0, "cuda").sample()
    assert (snapshot.gpu_util, snapshot.gpu_memory_total) == (None, None)
    assert snapshot.memory_total


def test_what_the_system_does_not_give_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A psutil that fails gives an empty snapshot."""
    import psutil  # noqa: PLC0415 - replaced below, as usage imports it

    def fail(*_: object) -> None:
        raise OSError("no /proc here")

    for name in ("virtual_memory", "cpu_times"):
        monkeypatch.setattr(psutil, name, fail)
    assert UsageSampler(proc=tmp_path, cgroup_root=tmp_path).sample() == ResourceSnapshot()
