from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from runspan.gate.hardware_checks import changes, look_after, look_before, report
from runspan.gate.hardware_probe import CpuState, GpuState, HardwareProbe, MachineState

if TYPE_CHECKING:
    from pathlib import Path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _probe(root: Path) -> HardwareProbe:
    return HardwareProbe(visible_devices="", proc=root / "proc", sys=root / "sys")


def _machine(root: Path, *, throttled: int = 0) -> None:
    _write(root / "proc/cpuinfo", "processor : 0\nmodel name : Intel(R) Xeon(R) Platinum 8480+\ncpu MHz : 1999.5\n")
    _write(root / "proc/loadavg", "0.25 0.50 0.75 1/100 4242\n")
    for number, khz in enumerate((2_000_000, 3_000_000, 3_800_000)):
        cpu = root / f"sys/devices/system/cpu/cpu{number}"
        _write(cpu / "cpufreq/scaling_cur_freq", f"{khz}\n")
        _write(cpu / "cpufreq/scaling_governor", "performance\n")
        _write(cpu / "thermal_throttle/core_throttle_count", f"{throttled}\n")
        _write(cpu / "thermal_throttle/package_throttle_count", "1\n")


def test_a_machine_without_a_gpu_is_its_processor(tmp_path: Path) -> None:
    """The fingerprint names the processor's model, and the key is made of it."""
    _machine(tmp_path)
    hardware = _probe(tmp_path).fingerprint()
    assert (hardware.gpu, hardware.driver) == ("cpu:Intel(R) Xeon(R) Platinum 8480+", "")
    assert hardware.gate_key.startswith("cpu-")


def test_the_state_is_what_the_kernels_files_say(tmp_path: Path) -> None:
    """Clock, governor, load and the sum of the throttling counters are read."""
    _machine(tmp_path, throttled=2)
    cpu = _probe(tmp_path).state().cpu
    assert (cpu.load_1m, cpu.clock_mhz, cpu.governors, cpu.throttle_events) == (0.25, 3000.0, ["performance"], 9)


def test_without_cpufreq_the_clock_is_cpuinfos(tmp_path: Path) -> None:
    """A virtual machine has no cpufreq; its clock stands in cpuinfo."""
    _write(tmp_path / "proc/cpuinfo", "cpu MHz : 2000.0\ncpu MHz : 2001.0\ncpu MHz : broken\n")
    assert _probe(tmp_path).state().cpu.clock_mhz == 2000.5


def test_what_is_not_there_is_absent(tmp_path: Path) -> None:
    """No file gives no figure, an unknown machine, and no statement that it is healthy."""
    probe = _probe(tmp_path)
    state = probe.state()
    assert (state.cpu.load_1m, state.cpu.clock_mhz, state.cpu.throttle_events) == (None, None, None)
    assert (probe.fingerprint().gpu, probe.fingerprint().gate_key) == ("unknown", "unknown")
    around = report(state, state, "speed")
    assert around.postcheck is not None
    assert (around.postcheck.validity, around.perf_class) == ("unknown", "unknown")
    assert around.postcheck.concerns
    assert "load_1m" not in around.before["cpu"]


def test_an_arm_machine_is_its_board(tmp_path: Path) -> None:
    """Where cpuinfo names no model, the device tree's board stands for it."""
    _write(tmp_path / "proc/cpuinfo", "CPU implementer : 0x41\n")
    _write(tmp_path / "sys/firmware/devicetree/base/model", "Raspberry Pi 5\0")
    assert _probe(tmp_path).fingerprint().gpu == "cpu:Raspberry Pi 5"


class _FakeNvml:
    """NVML as nvidia-ml-py offers it, for a machine of two devices; the real library needs the hardware."""

    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = NVML_PERF_POLICY_THERMAL = 0

    def __init__(self) -> None:
        self.unsupported: set[str] = set()
        self.reasons = 0
        self.throttled_ns = 7

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": lambda uuid: int(uuid.removeprefix("GPU-")),
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetName": lambda _: b"NVIDIA H100 80GB HBM3",
            "nvmlSystemGetDriverVersion": lambda: b"570.1",
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=5),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=3, total=9),
            "nvmlDeviceGetTemperature": lambda _handle, _sensor: 61,
            "nvmlDeviceGetPowerUsage": lambda _: 250_500,
            "nvmlDeviceGetClockInfo": lambda _handle, _kind: 1500,
            "nvmlDeviceGetApplicationsClock": lambda _handle, _kind: 1400,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: self.reasons,
            "nvmlDeviceGetViolationStatus": lambda _handle, _policy: SimpleNamespace(violationTime=self.throttled_ns),
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


def test_a_machine_with_gpus_is_its_gpus(nvml: _FakeNvml, tmp_path: Path) -> None:
    """Name, driver, locked clock and number come from NVML; what a driver does not support is left out."""
    hardware = HardwareProbe(proc=tmp_path, sys=tmp_path).fingerprint()
    assert (hardware.gpu, hardware.driver, hardware.gpu_count) == ("NVIDIA H100 80GB HBM3", "570.1", 2)
    assert (hardware.sm_clock_mhz, hardware.source, hardware.gate_key) == (1400.0, "nvml", "h100")
    nvml.unsupported = {"nvmlDeviceGetApplicationsClock"}
    assert HardwareProbe(proc=tmp_path, sys=tmp_path).fingerprint().sm_clock_mhz is None


@pytest.mark.parametrize(
    ("visible", "uuids"), [(None, ["GPU-0", "GPU-1"]), ("1", ["GPU-1"]), ("GPU-1,-1,0", ["GPU-1"]), ("", [])]
)
@pytest.mark.usefixtures("nvml")
def test_only_the_processs_gpus_count(visible: str | None, uuids: list[str], tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES says which devices a run can have been slowed down by."""
    state = HardwareProbe(visible_devices=visible, proc=tmp_path, sys=tmp_path).state()
    assert [gpu.uuid for gpu in state.gpus] == uuids


def test_a_gpus_state_has_its_clock_and_why_it_is_low(nvml: _FakeNvml, tmp_path: Path) -> None:
    """Temperature, clock, reasons of throttling and the counter of throttled time are read."""
    nvml.reasons = 0x44
    gpu = HardwareProbe(visible_devices="0", proc=tmp_path, sys=tmp_path).state().gpus[0]
    assert (gpu.temperature_c, gpu.sm_clock_mhz, gpu.thermal_throttled_ns) == (61, 1500, 7)
    assert gpu.throttle_reasons == ["power cap", "hardware thermal slowdown"]
    nvml.unsupported = {"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetViolationStatus"}
    blind = HardwareProbe(visible_devices="0", proc=tmp_path, sys=tmp_path).state()
    assert (blind.gpus[0].throttle_reasons, blind.gpus[0].thermal_throttled_ns) == (None, None)
    assert look_after(blind, blind, "speed").validity == "unknown"


def _state(*gpus: GpuState, load: float | None = 0.1, throttled: int | None = 5) -> MachineState:
    return MachineState(cpu=CpuState(cpus=4, load_1m=load, throttle_events=throttled), gpus=list(gpus))


def _gpu(*reasons: str, util: float = 0.0, throttled_ns: int | None = 0) -> GpuState:
    return GpuState(uuid="GPU-0", util=util, throttle_reasons=list(reasons), thermal_throttled_ns=throttled_ns)


@pytest.mark.parametrize(
    ("state", "decision", "concerns"),
    [
        (_state(), "proceed", 0),
        (_state(load=None), "proceed", 0),
        (_state(load=2.0), "proceed", 0),
        (_state(load=2.1), "warn", 1),
        (_state(_gpu()), "proceed", 0),
        (_state(_gpu("power cap", util=0.5)), "warn", 2),
        (_state(_gpu("hardware thermal slowdown"), load=9.0), "refuse", 2),
    ],
)
def test_the_look_before_decides(state: MachineState, decision: str, concerns: int) -> None:
    """Other load and a capped clock are warned of; a GPU that its hardware slows down is not measured."""
    check = look_before(state, "speed")
    assert (check.decision, len(check.concerns)) == (decision, concerns)
    assert look_before(state, "correctness").decision == "proceed"


@pytest.mark.parametrize(
    ("before", "after", "validity"),
    [
        (_state(), _state(), "valid"),
        (_state(throttled=5), _state(throttled=6), "invalid"),
        (_state(throttled=5), _state(throttled=0), "unknown"),
        (_state(throttled=None), _state(), "unknown"),
        (_state(_gpu()), _state(_gpu()), "valid"),
        (_state(_gpu(), throttled=None), _state(_gpu(), throttled=None), "valid"),
        (_state(_gpu()), _state(_gpu(throttled_ns=10)), "invalid"),
        (_state(_gpu()), _state(_gpu("hardware power brake")), "invalid"),
        (_state(_gpu()), _state(), "unknown"),
        (_state(_gpu(throttled_ns=None)), _state(_gpu()), "unknown"),
        (_state(_gpu(), throttled=1), _state(_gpu(), throttled=2), "invalid"),
    ],
)
def test_the_look_after_decides(before: MachineState, after: MachineState, validity: str) -> None:
    """A counter of throttling that rose spoils timings; one that is missing leaves them unknown, never valid."""
    check = look_after(before, after, "speed")
    assert check.validity == validity
    assert bool(check.concerns) == (validity != "valid")
    assert look_after(before, after, "correctness").validity == "not-applicable"


def test_the_report_tells_what_changed() -> None:
    """The delta has every figure that both readings have, and no other."""
    before, after = _state(_gpu(), load=None), _state(_gpu(throttled_ns=4), load=3.0, throttled=8)
    delta = changes(before, after)
    assert delta["cpu"]["throttle_events"] == 3
    assert "load_1m" not in delta["cpu"]
    assert delta["gpus"] == [{"uuid": "GPU-0", "util": 0.0, "thermal_throttled_ns": 4}]


@pytest.mark.parametrize(
    ("before", "after", "perf_class"),
    [
        (_state(), _state(), "full"),
        (_state(load=9.0), _state(), "degraded"),
        (_state(), _state(throttled=9), "degraded"),
        (_state(), None, "unknown"),
    ],
)
def test_the_class_of_performance_follows_from_both_looks(
    before: MachineState, after: MachineState | None, perf_class: str
) -> None:
    """Clean looks give full performance, a bad one degraded, a missing one unknown."""
    assert report(before, after, "speed").perf_class == perf_class
    assert report(before, after, "correctness").perf_class == "not-applicable"
