"""Gate records: made from runs, read, written, saved."""

from __future__ import annotations

import json
import math
import resource
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runspan.errors import GateError
from runspan.gate.baseline import GateConfig
from runspan.gate.closure import TargetClosure
from runspan.gate.frame import FrameStatus, LogLine, RunRecord, Verdict, VerdictKind
from runspan.gate.hardware import gate_key
from runspan.gate.record import GateRecord
from runspan.gate.storing import signature_path
from support.gate import H100, SHA, TIME, a_frame, a_record, a_run

if TYPE_CHECKING:
    from pathlib import Path

_CONFIG = GateConfig(perf_controls={"GRAPHS": "1", "CHUNK": "256"})


def _made(run: RunRecord, served_by: str | None = None, **arguments: Any) -> GateRecord:
    return GateRecord.from_run(run, H100, SHA, [], served_by, **{"environ": {}, **arguments})


def test_a_record_has_what_the_run_was() -> None:
    """A record takes over the run's identity, inputs, metrics and verdict."""
    record = GateRecord.from_run(a_run(), H100, SHA, ["b.py", "a.py"], None, environ={})
    assert (record.schema, record.benchmark_id, record.benchmark_name) == (1, "decode", "Decoding")
    assert (record.git_sha, list(record.dirty_paths), record.recorded_at) == (SHA, ["a.py", "b.py"], TIME)
    assert record.metrics == {"latency_ms": 12.5, "tokens": 1000.0}
    assert (record.frame_status, record.verdict, record.verdict_reason) == ("Completed", "PASS", "within bounds")
    assert (record.hardware, record.metrale_version) == (H100, "0.1.0")


def test_fields_stand_in_their_order_and_empty_ones_are_left_out() -> None:
    """JSON has the fields in the format's order, without optional ones that say nothing, with a null verdict."""
    fields = json.loads(_made(a_run(frame=a_frame(verdict=None))).to_json())
    assert list(fields) == [
        *("schema", "benchmark_id", "benchmark_name", "git_sha", "recorded_at", "target_model", "params", "command"),
        *("metrale_version", "hardware", "metrics", "frame_status", "verdict", "verdict_reason", "summary"),
    ]
    assert (fields["verdict"], fields["verdict_reason"]) == (None, "")


def test_maps_are_sorted() -> None:
    """Maps are written in the order of their keys, whatever the order they were made in."""
    record = _made(a_run(params={"z": "1", "a": "2", "é": "3"}, frame=a_frame(metrics={"b": 1.0, "a": 2.0})))
    fields = json.loads(record.to_json())
    assert list(fields["params"]) == ["a", "z", "é"]
    assert list(fields["metrics"]) == ["a", "b"]


@pytest.mark.parametrize("sha", ["", "HEAD", "main", "--help", "0123456", "0" * 64])
def test_a_sha_is_hex_digits(sha: str) -> None:
    """Only 7 to 64 lower-case hex digits name a commit: a branch, HEAD or an option is refused."""
    if sha.isdigit():
        assert a_record(sha).git_sha == sha
    else:
        with pytest.raises(GateError, match="expected 7 to 64 lower-case hex digits"):
            a_record(sha)


@pytest.mark.parametrize("sha", ["012345", "0" * 65, "ABCDEF0123", "abcdef0123\n", "abcdef 123"])
def test_an_ill_formed_sha_is_refused_when_loading_too(sha: str) -> None:
    """A record whose sha was edited into something else is unreadable."""
    data = a_record().to_json().replace(SHA.encode(), json.dumps(sha)[1:-1].encode())
    with pytest.raises(GateError, match="git_sha"):
        GateRecord.from_json(data)


def test_a_run_that_goes_on_makes_no_record() -> None:
    """A Running frame is refused; a Failed one makes a record that says so."""
    with pytest.raises(GateError, match="is Running"):
        _made(a_run(frame=a_frame(status=FrameStatus.RUNNING)))
    failed = _made(a_run(frame=a_frame(status=FrameStatus.FAILED, verdict=Verdict(VerdictKind.FAIL, "crashed"))))
    assert failed.frame_status_failed()
    assert (failed.verdict, failed.verdict_passes()) == ("FAIL", False)


def test_an_info_verdict_is_no_pass() -> None:
    """Only PASS passes: a verdict for information does not."""
    record = _made(a_run(frame=a_frame(verdict=Verdict(VerdictKind.INFO, "first run"))))
    assert (record.verdict, record.verdict_passes()) == ("info", False)


def test_the_command_is_rebuilt_from_the_inputs() -> None:
    """The command has url, model, sorted parameters and overrides; empty ones are left out."""
    run = a_run(
        target_url="http://host:1", target_model="m", params={"b": "2", "a": "1"}, serve_overrides={"y": "4", "x": "3"}
    )
    assert list(_made(run).command) == [
        *("runspan", "bench", "run", "decode", "--url", "http://host:1", "--model", "m"),
        *("--param", "a=1", "--param", "b=2", "--serve-override", "x=3", "--serve-override", "y=4", "--gate"),
    ]
    assert list(_made(a_run(params={})).command) == ["runspan", "bench", "run", "decode", "--gate"]


def test_a_server_of_the_gates_own_needs_no_url() -> None:
    """With a recipe that served the run, the command names neither url nor model."""
    run = a_run(target_url="http://host:1", target_model="m", params={})
    record = _made(run, "qwen3/8b", config=GateConfig(program=["metrale"]))
    assert list(record.command) == ["metrale", "run", "decode", "--gate"]
    assert record.served_by == "qwen3/8b"


@pytest.mark.parametrize(
    ("frame", "summary"),
    [
        ({}, "m · latency_ms=12.50, tokens=1000.00 · Pass: within bounds"),
        ({"metrics": {}, "verdict": None}, "m · no metrics · no verdict"),
        (
            {"metrics": {}, "log": [LogLine("info", "a"), LogLine("warning", "hot\r\nvery"), LogLine("error", "c")]},
            "m · no metrics · Pass: within bounds · warning: hot very",
        ),
        (
            {"metrics": {"x": 0.005}, "verdict": Verdict(VerdictKind.FAIL, "two\nlines")},
            "m · x=0.01 · Fail: two lines",
        ),
    ],
)
def test_the_summary_is_one_line(frame: dict[str, Any], summary: str) -> None:
    """Model, metrics, verdict and the first warning make one line."""
    assert _made(a_run(target_model="m", frame=a_frame(**frame))).summary == summary


def test_performance_controls_are_resolved() -> None:
    """A control that is unset or blank has its default; one that is set has its value."""
    record = _made(a_run(), config=_CONFIG, environ={"GRAPHS": "  ", "CHUNK": "512", "OTHER": "x"})
    assert record.perf_env == {"GRAPHS": "1", "CHUNK": "512"}


def test_a_servers_levers_come_before_the_processs_environment() -> None:
    """With the levers applied to a server the controls are resolved anew, the levers first."""
    record = _made(a_run(), config=_CONFIG)
    served = record.with_serve_env({"GRAPHS": "0", "CHUNK": ""}, config=_CONFIG, environ={"CHUNK": "64", "GRAPHS": "5"})
    assert (served.perf_env, served.serve_env) == ({"GRAPHS": "0", "CHUNK": "64"}, {"GRAPHS": "0", "CHUNK": ""})
    assert record.serve_env == {}


def test_each_addition_makes_a_new_record() -> None:
    """Recipe, resolved settings and closure are added to a copy; the record itself never changes."""
    record = a_record()
    added = (
        record.with_served_recipe("ab" * 32)
        .with_serve_resolved({"tp": "8"})
        .with_closure(b'{"kernels": {"hash": "1", "arch": "sm_90", "compiler": "nvcc", "flags": "-O3"}}')
    )
    assert (added.served_recipe_sha256, added.serve_resolved) == ("ab" * 32, {"tp": "8"})
    assert added.closure == {"kernels": TargetClosure(hash="1", arch="sm_90", compiler="nvcc", flags="-O3")}
    assert record == a_record()
    assert GateRecord.from_json(added.to_json()) == added


@pytest.mark.parametrize("baked", [b"", b"{", b'{"a": 1}', b"\xff", b"[" * 100_000])
def test_a_closure_that_cannot_be_read_attests_nothing(baked: bytes) -> None:
    """What a build left unreadable is an empty closure, which is not written."""
    record = a_record().with_closure(baked)
    assert record.closure == {}
    assert b"closure" not in record.to_json()


@pytest.mark.parametrize(
    ("metrics", "shard"),
    [
        ({"shard.index": 0, "shard.count": 1}, (0, 1)),
        ({"shard.index": 3.0, "shard.count": 4.0}, (3, 4)),
        ({"shard.index": 4, "shard.count": 4}, None),
        ({"shard.index": -1, "shard.count": 4}, None),
        ({"shard.index": 0, "shard.count": 0}, None),
        ({"shard.index": 0.5, "shard.count": 4}, None),
        ({"shard.index": 0, "shard.count": math.inf}, None),
        ({"shard.index": math.nan, "shard.count": 4}, None),
        ({"shard.index": 0}, None),
        ({"shard.count": 4}, None),
        ({}, None),
    ],
)
def test_a_shard_is_a_whole_number_below_its_count(metrics: dict[str, float], shard: tuple[int, int] | None) -> None:
    """A record is a shard only with an integral index below an integral count."""
    assert a_record(metrics=metrics).shard() == shard


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2 is newer than 1"),
        ({"schema": True}, "schema True: expected 1"),
        ({"schema": "1"}, "schema '1': expected 1"),
        ({"schema": None}, "schema None: expected 1"),
        ({"metrics": {"x": "fast"}}, r"Expected `float`, got `str`.*metrics"),
        ({"metrics": {"x": True}}, r"Expected `float`, got `bool`.*metrics"),
        ({"metrics": [1]}, r"Expected `object`, got `array`.*metrics"),
        ({"params": {"x": 1}}, r"Expected `str`, got `int`.*params"),
        ({"frame_status": "Done"}, r"Invalid enum value 'Done'.*frame_status"),
        ({"verdict": "pass"}, r"Invalid enum value 'pass'.*verdict"),
        ({"recorded_at": -1}, "recorded_at -1"),
        ({"recorded_at": 2**64}, "recorded_at"),
        ({"hardware": {"gpu": "x"}}, "missing required field `driver`"),
    ],
)
def test_a_field_of_another_type_is_named(change: dict[str, Any], message: str) -> None:
    """A record with a wrong field is unreadable, and the error names the field and what it takes."""
    fields = {**json.loads(a_record().to_json()), **change}
    with pytest.raises(GateError, match=message):
        GateRecord.from_json(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "field", ["schema", "benchmark_id", "git_sha", "metrics", "hardware", "summary", "frame_status"]
)
def test_a_missing_field_is_named(field: str) -> None:
    """A record that lacks a field is unreadable, and the error names it."""
    fields = json.loads(a_record().to_json())
    del fields[field]
    with pytest.raises(GateError, match=field):
        GateRecord.from_json(json.dumps(fields).encode())


def test_a_record_with_a_metric_that_is_not_finite_is_not_written() -> None:
    """NaN has no JSON: such a metric must be left out and named before a record is made."""
    with pytest.raises(ValueError, match="JSON has no nan"):
        a_record(metrics={"x": math.nan}).to_json()


def test_a_record_is_saved_under_its_day_and_commit(tmp_path: Path) -> None:
    """A record's file is named by the UTC day and the commit, and reads back as the record."""
    path = a_record().save(tmp_path)
    assert path == tmp_path / ".benchmarks/decode/2026-01-02-0123456789.json"
    assert GateRecord.load(path) == a_record()
    assert list(path.parent.iterdir()) == [path]


def test_shard_and_model_stand_in_the_name(tmp_path: Path) -> None:
    """The name tells a model that is not its hardware's default, and the part of a sharded run."""
    (tmp_path / ".benchmarks").mkdir()
    (tmp_path / ".benchmarks/bounds.toml").write_text("[hardware.h100.'Qwen/3-8B']\ndefault = true\n")
    shard = {"shard.index": 1, "shard.count": 4}
    assert a_record(target_model="Qwen/3-8B").save(tmp_path).name == "2026-01-02-0123456789.json"
    assert a_record(target_model="Llama/3.1 8B").save(tmp_path).name == "2026-01-02-0123456789-llama-3.1-8b.json"
    assert a_record(metrics=shard).save(tmp_path).name == "2026-01-02-0123456789-s1of4.json"
    assert a_record(metrics=shard, target_model="x").save(tmp_path).name == "2026-01-02-0123456789-x-s1of4.json"


def test_models_whose_names_look_alike_do_not_share_a_file(tmp_path: Path) -> None:
    """A model whose name reads like another's gets a digest into its file's name."""
    first = a_record(target_model="a/b").save(tmp_path)
    second = a_record(target_model="a-b").save(tmp_path)
    assert first.name == "2026-01-02-0123456789-a-b.json"
    assert second.name.startswith("2026-01-02-0123456789-a-b-")
    assert len(second.stem) == len(first.stem) + 17
    assert GateRecord.load(first).target_model == "a/b"
    assert a_record(target_model="a-b", recorded_at=TIME + 1).save(tmp_path) == second


def test_a_rerun_on_the_same_day_replaces_a_pass_and_its_signature(tmp_path: Path) -> None:
    """A rerun takes the earlier record's place, and the signature of what is gone goes too."""
    path = a_record().save(tmp_path)
    signature_path(path).write_text("{}")
    assert a_record(recorded_at=TIME + 60).save(tmp_path) == path
    assert GateRecord.load(path).recorded_at == TIME + 60
    assert not signature_path(path).exists()


@pytest.mark.parametrize(
    "earlier",
    [
        a_record(verdict="FAIL").to_json(),
        a_record(frame_status=FrameStatus.FAILED, verdict="PASS").to_json(),
        b"{",
        b"",
    ],
    ids=["FAIL", "Failed", "unreadable", "empty"],
)
def test_a_failure_is_never_overwritten(tmp_path: Path, earlier: bytes) -> None:
    """A rerun leaves a failed or unreadable record where it is and goes beside it; a second such place is an error."""
    path = a_record().save(tmp_path)
    path.write_bytes(earlier)
    second = a_record().save(tmp_path)
    assert second.name == "2026-01-02T030405Z-0123456789.json"
    assert path.read_bytes() == earlier
    second.write_bytes(earlier)
    with pytest.raises(GateError, match="which no rerun replaces"):
        a_record().save(tmp_path)
    assert (path.read_bytes(), second.read_bytes()) == (earlier, earlier)


@pytest.mark.parametrize("benchmark_id", ["", "..", "../x", "a/b", ".hidden", "a b", "-x", "a\n"])
def test_a_benchmark_id_leaves_its_folder_nowhere(tmp_path: Path, benchmark_id: str) -> None:
    """An id that is no plain folder name is refused, and nothing is written."""
    with pytest.raises(GateError, match="benchmark id"):
        a_record(benchmark_id=benchmark_id).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """A file in the folder's place, or a metric without a JSON form, is an error that names the path."""
    with pytest.raises(GateError, match="cannot be written: JSON has no inf"):
        a_record(metrics={"x": math.inf}).save(tmp_path)
    (tmp_path / ".benchmarks").mkdir(exist_ok=True)
    (tmp_path / ".benchmarks/other").write_text("")
    with pytest.raises(GateError, match="cannot be written"):
        a_record(benchmark_id="other").save(tmp_path)


def test_on_a_full_disk_the_earlier_record_stays(tmp_path: Path) -> None:
    """What cannot be written whole is not written at all, and the error names the path and the reason once."""
    path = a_record().save(tmp_path)
    earlier = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(GateError) as refused:
            a_record(metrics={"latency_ms": 1.0}).save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(refused.value) == f"{path} cannot be written: File too large"
    assert (path.read_bytes(), list(path.parent.iterdir())) == (earlier, [path])


@pytest.mark.parametrize("recorded_at", [2**63, 2**64 - 1, 253_402_300_800])
def test_a_time_that_is_no_date_names_no_file(tmp_path: Path, recorded_at: int) -> None:
    """A record whose time no calendar has is refused with the time, and nothing is written."""
    with pytest.raises(GateError, match=f"recorded_at {recorded_at}: expected unix seconds"):
        a_record(recorded_at=recorded_at).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    """A missing file, a folder and a foreign file are errors with the path."""
    for path, content in ((tmp_path / "none", None), (tmp_path, None), (tmp_path / "list", "[]"), (tmp_path / "x", "")):
        if content is not None:
            path.write_text(content)
        with pytest.raises(GateError, match=str(path)):
            GateRecord.load(path)


@pytest.mark.parametrize(
    ("gpu", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "geforcertx4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("cpu:Intel(R) Xeon(R) Platinum 8480+", "cpu-intel-xeon-platinum-8480"),
        ("cpu:AMD EPYC 9654 96-Core Processor", "cpu-amd-epyc-9654"),
        ("cpu:Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", "cpu-intel-core-i7-8700"),
        ("cpu:", "cpu-unknown"),
        ("", "unknown"),
    ],
)
def test_a_machines_key_is_its_models_short_name(gpu: str, key: str) -> None:
    """The key drops makers, memory sizes and trade marks; a machine without a GPU has its processor's."""
    assert gate_key(gpu) == key


def test_a_run_record_is_plain_json() -> None:
    """The run's own record reads back from JSON as it was."""
    run = a_run()
    assert msgspec.json.decode(msgspec.json.encode(run.to_builtins()), type=RunRecord) == run
