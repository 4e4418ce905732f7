from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from support.chrome_trace import load_chrome_trace, slices
from support.cli import Cli
from support.export_traces import make_exported_run
from support.otlp_receiver import OtlpReceiver
from support.programs import Workplace
from support.speedscope_format import load_speedscope

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def runspan(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands on a root folder with one run of two ranks, whatever this process's environment says."""
    for name in ("RUNSPAN_DIR", "RUNSPAN_STORAGE", "RUNSPAN_TRACE_DIR", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    make_exported_run(tmp_path / "root" / "runs" / "run-a")
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "root", capsys)


def test_a_run_is_exported_with_its_captured_steps(runspan: Cli, tmp_path: Path) -> None:
    """The file has all ranks; the command says how many traces went into it."""
    answer = runspan("trace", "export", "run-a", "--to", "perfetto", "-o", "out.json")
    assert (answer.code, answer.out, answer.err) == (0, "out.json: 4 traces\n", "")
    assert len(slices(load_chrome_trace(tmp_path / "out.json"), "forward")) == 2


def test_one_trace_file_is_exported_alone(runspan: Cli, tmp_path: Path) -> None:
    """A path to a rank's file means this rank and what it captured."""
    trace = runspan.root / "runs" / "run-a" / "rank-00001.jsonl"
    answer = runspan("trace", "export", str(trace), "--to", "speedscope", "-o", "out.json", "--json")
    assert answer.document == {"output": "out.json", "traces": 2, "left_out": []}
    names = [profile["name"] for profile in load_speedscope(tmp_path / "out.json")["profiles"]]
    assert names == ["rank 1", "rank 1 · update-000000101"]


@pytest.mark.parametrize("to", ["perfetto", "speedscope", "folded"])
def test_a_name_with_gz_makes_a_gzip_file(runspan: Cli, tmp_path: Path, to: str) -> None:
    """The unpacked file is the one that is written without."""
    for name in ("out", "out.gz"):
        assert runspan("trace", "export", "run-a", "--to", to, "-o", name).code == 0
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == (tmp_path / "out").read_bytes()


def test_parquet_is_a_folder(runspan: Cli, tmp_path: Path) -> None:
    """The tables are files of one folder, which a second export replaces when it is forced to."""
    for options in ((), ("--force",)):
        assert runspan("trace", "export", "run-a", "--to", "parquet", "-o", "tables", *options).code == 0
    assert (tmp_path / "tables" / "steps.parquet").stat().st_size > 0


def test_html_is_one_page(runspan: Cli, tmp_path: Path) -> None:
    """The page of the run is written to the file that was named."""
    assert runspan("trace", "export", "run-a", "--to", "html", "-o", "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert page[:15].lower() == "<!doctype html>"
    assert "run-a" in page


def test_otlp_sends_every_span_to_the_endpoint(runspan: Cli) -> None:
    """Each span of the run and of its captured steps arrives with its own id; the report counts them."""
    with OtlpReceiver() as receiver:
        url = f"http://127.0.0.1:{receiver.port}"
        answer = runspan("trace", "export", "run-a", "--to", "otlp", "--endpoint", url)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith("complete: 8 spans and ")
        assert sorted(span.name for span in receiver.spans) == sorted(2 * ["rank", "evaluate", "step", "forward"])
        report = runspan("trace", "export", "run-a", "--to", "otlp", "--endpoint", url, "--json").document
        assert (report["outcome"], report["spans"], report["traces"]) == ("complete", 8, 4)


def test_otlp_without_an_endpoint_is_exit_code_2(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is no endpoint is named."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://nowhere")
    answer = runspan("trace", "export", "run-a", "--to", "otlp")
    assert (answer.code, answer.out) == (2, "")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in answer.err


def test_an_output_that_is_there_stays_unless_forced(runspan: Cli, tmp_path: Path) -> None:
    """Nothing is overwritten by accident."""
    (tmp_path / "out").write_text("mine")
    answer = runspan("trace", "export", "run-a", "--to", "folded", "-o", "out")
    assert (answer.code, (tmp_path / "out").read_text()) == (2, "mine")
    assert "out is there already: give another path, or replace it with --force" in answer.err
    assert runspan("trace", "export", "run-a", "--to", "folded", "-o", "out", "--force").code == 0
    assert (tmp_path / "out").read_text().startswith("rank 0;rank ")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--to", "flame", "-o", "x"), "flame"),
        (("--to", "perfetto"), "--to perfetto needs -o OUT, the file to write"),
        (("--to", "parquet"), "--to parquet needs -o OUT, the folder to write"),
        (("--to", "parquet", "-o", "-"), "stdout takes one document"),
        (("--to", "folded", "-o", "-", "--json"), "stdout takes one document"),
        (("--to", "folded", "-o", "absent/out"), "absent/out cannot be written (No such file or directory)"),
        (("--to", "folded", "-o", "x", "--endpoint", "http://localhost:1"), "--endpoint is where --to otlp sends"),
        (("--to", "otlp", "-o", "x"), "--to otlp writes no file"),
    ],
)
def test_bad_input_is_named_with_exit_code_2(runspan: Cli, options: tuple[str, ...], told: str) -> None:
    """What cannot be done is told with what to do instead, before anything is written."""
    answer = runspan("trace", "export", "run-a", *options)
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err


def test_a_run_that_is_not_there_is_exit_code_2(runspan: Cli) -> None:
    """The run that was asked for is named."""
    answer = runspan("trace", "export", "run-b", "--to", "folded", "-o", "x")
    assert answer.code == 2
    assert "no run 'run-b'" in answer.err


def test_a_rank_that_cannot_be_opened_is_told_with_exit_code_1(runspan: Cli, tmp_path: Path) -> None:
    """Case 34: the others are exported; that one is missing is part of the answer."""
    (runspan.root / "runs" / "run-a" / "rank-00002.jsonl").touch()
    answer = runspan("trace", "export", "run-a", "--to", "folded", "-o", "out")
    assert answer.code == 1
    assert "left out:" in answer.err
    assert "rank-00002.jsonl: empty" in answer.err
    assert (tmp_path / "out").exists()


def test_a_cut_end_is_told(runspan: Cli) -> None:
    """Case 36: a trace that a crash has cut is exported up to there, and the command says so."""
    path = runspan.root / "runs" / "run-a" / "rank-00001.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    answer = runspan("trace", "export", "run-a", "--to", "folded", "-o", "out")
    assert (answer.code, answer.out) == (0, "out: 4 traces\n")
    assert answer.err == f"runspan: {path}: its last line is cut off; what stands before it is exported\n"


def test_stdout_gets_the_whole_document_or_nothing(tmp_path: Path) -> None:
    """`-o -` prints what a file would hold; a broken trace prints nothing on stdout."""
    place = Workplace(tmp_path)
    traces = make_exported_run(place.root / "runs" / "run-a")
    program = """
    import sys
    from runspan.cli import main
    sys.exit(main(["trace", "export", "run-a", "--to", sys.argv[1], "-o", "-"]))
    """
    done = place.run(program, "perfetto")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["traceEvents"]) > 10
    traces[1].write_bytes(traces[1].read_bytes().replace(b'"key":"loss"', b'"key":5'))
    done = place.run(program, "perfetto")
    assert (done.returncode, done.stdout) == (2, "")
    assert "rank-00001.jsonl:" in done.stderr
