from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import runspan
from runspan.errors import ConfigError
from support.programs import events_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.live import LiveRuns


@dataclass
class _Optimizer:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass
class _Config:
    name: str = "small"
    optimizer: _Optimizer = field(default_factory=_Optimizer)
    by_name: dict[str, _Optimizer] = field(default_factory=lambda: {"a": _Optimizer(0.5)})


def _params(live: LiveRuns, run: runspan.Run) -> dict[str, Any]:
    return {line["key"]: line["value"] for line in events_of(live.lines(run), "param")}


@pytest.mark.parametrize(
    "make", [lambda: {"a": 1, "b": "x"}, lambda: argparse.Namespace(a=1, b="x"), lambda: SimpleNamespace(a=1, b="x")]
)
def test_params_of_mappings_and_namespaces(live: LiveRuns, make: Any) -> None:
    """A mapping, an argparse Namespace and any object with attributes are parameters by name, in file and storage."""
    run = live.start(params=make())
    run.log_params(make())
    run.log_param("c", 2.5)
    run.finish()
    assert _params(live, run) == {"a": 1, "b": "x", "c": 2.5}
    assert live.storage.get_params(run.id) == {"a": 1, "b": "x", "c": 2.5}


def test_params_of_dataclasses_nest(live: LiveRuns) -> None:
    """A dataclass's fields are parameters, nested ones maps."""
    run = live.start(params=_Config())
    run.finish()
    expected = {
        "name": "small",
        "optimizer": {"lr": 0.1, "betas": [0.9, 0.999]},
        "by_name": {"a": {"lr": 0.5, "betas": [0.9, 0.999]}},
    }
    assert _params(live, run) == expected
    assert live.storage.get_params(run.id) == expected


def test_params_of_every_make_are_stored(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """Cases 10 and 27: huge, exact, odd and self-containing values neither fail nor hold up what comes after them."""
    loop: dict[str, Any] = {}
    loop["self"] = loop
    run = live.start()
    run.log_params({
        "long": "x" * 50_000,
        "nested": {"a": {"b": [1, {"c": None}]}},
        "seed": 2**64 - 1,
        "beyond": 10**30,
        "nan": float("nan"),
        "numpy": np.float32(1.5),
        "array": np.array([1, 2]),
        "bytes": b"\xff",
        "path": Path("/data"),
        "type": float,
        "set": {1},
        "loop": loop,
    })  # fmt: skip
    run.log_metric("loss", 1.0)
    run.finish()
    params = _params(live, run)
    assert params["long"] == "x" * 50_000
    assert params["nested"] == {"a": {"b": [1, {"c": None}]}}
    assert params["seed"] == 2**64 - 1
    assert params["beyond"] == str(10**30)
    assert params["nan"] == {"$float": "NaN"}
    assert (params["numpy"], params["array"], params["path"], params["set"]) == (1.5, [1, 2], "/data", [1])
    stored = live.storage.get_params(run.id)
    assert stored["seed"] == 2**64 - 1
    assert stored["long"] == "x" * 50_000
    assert live.storage.get_run_status(run.id) == "success"
    assert len(live.storage.get_metrics(run.id, "loss")) == 1
    assert caplog.records == []


def test_the_last_value_holds_and_a_change_is_told_once(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """Setting a parameter or a tag to another value is one warning each; the same value again is none."""
    run = live.start(params={"lr": 0.1}, tags={"lesson": "1"})
    run.log_param("lr", 0.1)
    run.set_tag("lesson", "1")
    assert caplog.records == []
    for value in (0.2, 0.3):
        run.log_param("lr", value)
        run.set_tag("lesson", value)
    run.finish()
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "parameter 'lr' was changed; the last value holds",
        "tag 'lesson' was changed; the last value holds",
    ]
    info = live.storage.get_run(run.id)
    assert (info.params, info.tags) == ({"lr": 0.3}, {"lesson": "0.3"})


def test_rank_0s_params_win(live: LiveRuns) -> None:
    """Another rank's parameters add to rank 0's and never replace them, whoever is last."""
    first = live.start(run_id="r", rank_context=runspan.RankContext(1, 2), params={"lr": 1, "rank": 1})
    zero = live.start(run_id="r", rank_context=runspan.RankContext(0, 2), params={"lr": 0})
    first.log_param("lr", 2)
    zero.finish()
    first.finish()
    assert live.storage.get_params("r") == {"lr": 0, "rank": 1}


@pytest.mark.parametrize("params", [3, "text", [1], None])
def test_what_is_no_set_of_params(live: LiveRuns, params: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Later it is a counted warning; as an argument of start_run a ConfigError that says what is taken."""
    run = live.start()
    run.log_params(params)
    (record,) = caplog.records
    assert "a mapping, a Namespace or a dataclass" in record.getMessage()
    if params is not None:
        with pytest.raises(ConfigError, match="a mapping, a Namespace or a dataclass"):
            live.start(params=params)


def test_tags_are_text_and_stand_in_meta(live: LiveRuns) -> None:
    """Tags given at the start are in meta, sorted; every tag is a string and a line."""
    run = live.start(tags={"z": 1, "a": "x"})
    run.set_tags({"later": 2.5})
    lines = live.lines(run)
    assert list(lines[0]["tags"].items()) == [("a", "x"), ("z", "1")]
    assert {line["key"]: line["value"] for line in events_of(lines, "tag")} == {"a": "x", "z": "1", "later": "2.5"}
    run.finish()
    assert live.storage.get_run(run.id).tags == {"a": "x", "z": "1", "later": "2.5"}


def test_secrets_reach_nothing(
    live: LiveRuns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials in argv, params, tags, events, alerts, errors and headers are *** in file, spans, storage and log."""
    secret = "hunter2hunter2"  # noqa: S105 - what must not be found
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", secret, f"--db=postgres://me:{secret}@host/x"])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer {secret}")
    run = live.start(
        params={"api_key": secret, "nested": {"hf_token": secret}, "url": f"https://u:{secret}@h/", "num_tokens": 5},
        tags={"password": secret, "tokenizer": "bpe"},
        otlp_headers={"x-key": secret},
    )
    run.event("note", text=f"https://u:{secret}@h/", api_key=secret, message=f"password={secret}")
    run.alert(f"password={secret}", f"https://u:{secret}@h/")
    with pytest.raises(ValueError, match="bad"), run.span("s"):
        raise ValueError(f"bad; password={secret}")
    run.finish("failed", "over")
    text = (live.trace_dir / run.id / "rank-00000.jsonl").read_text()
    assert secret not in text
    assert secret not in repr(run.tracing_config)
    assert secret not in str(live.storage.get_run(run.id))
    assert secret not in caplog.text
    assert "***" in text
    info = live.storage.get_run(run.id)
    assert info.params["api_key"] == "***"
    assert info.params["num_tokens"] == 5
    assert info.tags == {"password": "***", "tokenizer": "bpe"}


def test_events_are_lines(live: LiveRuns) -> None:
    """An event has a name, a level, attributes of any values, and its message or its name as the message."""
    run = live.start()
    run.event("resumed", from_step=7, ratio=float("inf"), config={"a": [1]})
    run.event("odd", level="warning", message="look here")
    first, second = (events_of(live.lines(run), "event", name=name)[0] for name in ("resumed", "odd"))
    assert (first["level"], first["message"]) == ("info", "resumed")
    assert first["attributes"] == {"from_step": 7, "ratio": {"$float": "Infinity"}, "config": {"a": [1]}}
    assert (second["level"], second["message"]) == ("warning", "look here")
    assert "attributes" not in second


def test_observations_are_lines(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """Observe keeps the value and its unit; what is no number is one warning."""
    run = live.start()
    run.observe("latency", 0.5, "s")
    run.observe("latency", np.float32(1.5))
    run.observe("latency", float("nan"))
    run.observe("latency", "fast")
    lines = events_of(live.lines(run), "observe")
    assert [(line["value"], line.get("unit")) for line in lines] == [(0.5, "s"), (1.5, None), ("NaN", None)]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("level", "stop_on", "stops"),
    [
        ("critical", {}, False),
        ("warning", {"stop_on_error": True, "stop_on_critical": True}, False),
        ("error", {"stop_on_error": True}, True),
        ("critical", {"stop_on_error": True}, True),
        ("error", {"stop_on_critical": True}, False),
        (runspan.AlertLevel.CRITICAL, {"stop_on_critical": True}, True),
    ],
)
def test_an_alert_goes_everywhere_and_may_ask_to_stop(
    live: LiveRuns,
    caplog: pytest.LogCaptureFixture,
    level: str,
    stop_on: dict[str, Any],
    stops: bool,
) -> None:
    """An alert is a log record, a line and a short span under rank; should_stop is set where the config asks for it."""
    run = live.start(**stop_on)
    run.alert("diverged", "loss is NaN", level)
    assert run.should_stop is stops
    lines = live.lines(run)
    (event,) = events_of(lines, "event", name="alert")
    assert (event["level"], event["message"], event["attributes"]["text"]) == (level, "diverged", "loss is NaN")
    (span,) = events_of(lines, "span_start", name="alert")
    assert span["parent_id"] == lines[0]["span_id"]
    assert [(record.levelname.lower(), "diverged" in record.getMessage()) for record in caplog.records] == [
        (level, True)
    ]


def test_an_unknown_alert_level_is_a_warning_or_raises_when_strict(
    live: LiveRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """The alert still goes out, as a warning."""
    run = live.start()
    run.alert("title", level="catastrophic")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    with pytest.raises(ConfigError, match="catastrophic"):
        live.start(strict=True).alert("title", level="catastrophic")


def test_artifacts_are_kept_by_content(live: LiveRuns, tmp_path: Path) -> None:
    """Bytes and files are kept once under their hash, listed in storage by name, with their step and size."""
    content = b"x" * 3_000_000
    (tmp_path / "model.bin").write_bytes(content)
    run = live.start()
    digest = f"sha256-{hashlib.sha256(content).hexdigest()}"
    assert run.log_artifact("../../escape", tmp_path / "model.bin", step=np.int64(4)) == digest
    assert run.log_artifact("again", content) == digest
    assert run.log_artifact("text", str(tmp_path / "model.bin")) == digest
    assert run.directory is not None
    folder = run.directory / "artifacts"
    assert [path.name for path in folder.iterdir()] == [digest]
    assert (folder / digest).read_bytes() == content
    run.finish()
    stored = live.storage.list_artifacts(run.id)
    assert [(each.name, each.hash, each.bytes, each.step) for each in stored] == [
        ("../../escape", digest, 3_000_000, 4),
        ("again", digest, 3_000_000, None),
        ("text", digest, 3_000_000, None),
    ]
    first = events_of(live.lines(run), "artifact")[0]
    assert first == {"kind": "artifact", "name": "../../escape", "hash": digest, "bytes": 3_000_000, "step": 4}


def test_a_directory_is_kept_as_its_manifest(live: LiveRuns, tmp_path: Path) -> None:
    """A directory's hash is its sorted manifest's, the same wherever it stands; its files are kept one by one."""
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "sub").mkdir(parents=True)
        (folder / "sub/b.txt").write_text("b")
        (folder / "a.txt").write_text("a")
    run = live.start()
    first, second = run.log_artifact("d", tmp_path / "one"), run.log_artifact("e", tmp_path / "two")
    assert first == second
    assert run.directory is not None
    assert first is not None
    manifest = json.loads((run.directory / "artifacts" / first).read_text())
    assert manifest == {
        "a.txt": f"sha256-{hashlib.sha256(b'a').hexdigest()}",
        "sub/b.txt": f"sha256-{hashlib.sha256(b'b').hexdigest()}",
    }
    assert all((run.directory / "artifacts" / name).exists() for name in manifest.values())
    assert run.log_artifact("r", tmp_path / "one", by_reference=True) == first


def test_an_artifact_by_reference_is_hashed_where_it_is(live: LiveRuns, tmp_path: Path) -> None:
    """By reference nothing is copied; the line says where it is."""
    (tmp_path / "big").write_bytes(b"big")
    run = live.start()
    digest = run.log_artifact("big", tmp_path / "big", by_reference=True)
    assert digest == f"sha256-{hashlib.sha256(b'big').hexdigest()}"
    assert run.directory is not None
    assert not (run.directory / "artifacts").exists()
    (line,) = events_of(live.lines(run), "artifact")
    assert line["reference"] == str(tmp_path / "big")


def test_an_artifact_that_cannot_be_kept_is_a_warning(
    live: LiveRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be read, and bytes by reference, are None and a warning each; strict raises."""
    run = live.start()
    assert run.log_artifact("missing", tmp_path / "missing") is None
    assert run.log_artifact("bytes", b"x", by_reference=True) is None
    assert run.log_artifact("step", b"x", step=-1) is None
    content: Any = 5
    assert run.log_artifact("content", content) is None
    assert len(caplog.records) == 4
    assert events_of(live.lines(run), "artifact") == []
    with pytest.raises(ConfigError, match="missing"):
        live.start(strict=True).log_artifact("missing", tmp_path / "missing")


def test_an_artifact_can_be_read_by_others(live: LiveRuns) -> None:
    """An artifact has the permissions that any file of the user has, not a temporary file's."""
    run = live.start()
    digest = run.log_artifact("a", b"x")
    assert run.directory is not None
    mask = os.umask(0)
    os.umask(mask)
    assert (run.directory / "artifacts" / str(digest)).stat().st_mode & 0o777 == 0o666 & ~mask


def test_the_environment_event_says_what_was_started(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argv, working directory, Python and packages are a line of their own; without git there is none of it."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1"])
    run = live.start()
    (line,) = events_of(live.lines(run), "environment")
    assert line["argv"] == ["train.py", "--lr", "0.1"]
    assert line["cwd"] == str(Path.cwd())
    assert line["python"] == ".".join(map(str, sys.version_info[:3]))
    assert line["packages"]["pytest"] == pytest.__version__
    assert "git" not in line


@pytest.fixture
def terminal() -> Iterator[None]:
    """Put back what a captured run left in place of the streams."""
    streams = sys.stdout, sys.stderr
    yield
    sys.stdout, sys.stderr = streams


@pytest.mark.usefixtures("terminal")
def test_captured_output_is_copied(live: LiveRuns) -> None:
    """capture_output copies what is printed into the rank's log file, until the end; the streams are put back."""
    before = sys.stdout, sys.stderr
    run = live.start(capture_output=True)
    sys.stdout.write("loss é 0.5\n")
    sys.stderr.write("warning\n")
    sys.stdout.writelines(["a\n", "b\n"])
    run.finish()
    sys.stdout.write("late\n")
    assert (sys.stdout, sys.stderr) == before
    assert run.directory is not None
    assert (run.directory / "rank-00000.log").read_text() == "loss é 0.5\nwarning\na\nb\n"
