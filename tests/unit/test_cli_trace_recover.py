from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.cli import Cli, cut_end, make_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def runspan(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands on a root folder with a run whose second rank was killed, whatever the environment says."""
    for name in ("RUNSPAN_DIR", "RUNSPAN_STORAGE", "RUNSPAN_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    cut_end(make_run(tmp_path, "run-a", world_size=2), rank=1)
    return Cli(tmp_path, capsys)


def test_recover_says_what_it_did(runspan: Cli) -> None:
    """The first call names what it ended and fills storage; the second has nothing to do; both are done."""
    first = runspan("trace", "recover", "run-a")
    assert (first.code, first.err) == (0, "")
    ended, stored = first.out.splitlines()
    assert ended.endswith("rank-00001.jsonl: interrupted, last seen 2023-11-14 22:13:20Z; 0 open spans ended")
    assert stored == "storage: 6 points added, 0 known"
    second = runspan("trace", "recover", "run-a")
    assert second.code == 0
    assert second.out.splitlines()[0].endswith("run-a: every trace has its end")
    assert runspan("show", "run-a", "--json").document["status"] == "failed"


def test_recover_prints_one_document(runspan: Cli) -> None:
    """`--json` has what was closed, stored and exported; what did not take place is null."""
    document = runspan("trace", "recover", "run-a", "--json", "--storage", "none").document
    (closed,) = document["closed"]
    assert (closed["spans_ended"], closed["torn_bytes"]) == (0, 0)
    assert (document["stored"], document["exported"], document["empty"], document["warnings"]) == (None, None, [], [])


def test_recover_tells_of_what_it_cannot_recover(runspan: Cli) -> None:
    """A trace that has no meta line costs exit code 1; one that a kill left empty does not; both are named."""
    folder = runspan.root / "runs" / "run-a"
    (folder / "rank-00002.jsonl").write_bytes(b"")
    answer = runspan("trace", "recover", "run-a")
    assert answer.code == 0
    assert "rank-00002.jsonl: empty" in answer.out
    (folder / "rank-00003.jsonl").write_bytes(b"no json\n")
    answer = runspan("trace", "recover", "run-a")
    assert answer.code == 1
    assert "rank-00003.jsonl" in answer.err


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:99999999", "ftp://x"])
def test_an_endpoint_that_is_none_is_refused(runspan: Cli, endpoint: str) -> None:
    """An unusable endpoint is one error before anything is changed."""
    trace = runspan.root / "runs" / "run-a" / "rank-00001.jsonl"
    before = trace.read_bytes()
    answer = runspan("trace", "recover", "run-a", "--endpoint", endpoint)
    assert (answer.code, answer.out) == (2, "")
    assert trace.read_bytes() == before
