from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.cli import clean_environ, run_program
from support.otlp_receiver import OtlpReceiver
from support.programs import Workplace, events_of, lines_of

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import os, runspan, time
with runspan.start_run("golden") as run:
    print(run.id)
    for number in range(3):
        with run.epoch(number):
            time.sleep(0.05)
    if os.fork() == 0:
        run.finish()
        os._exit(0 if run._session.state.golden_score is None else 1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    for number in range(int(os.environ.get("EXTRA", "0"))):
        with run.span(f"extra {number}"):
            pass
"""


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """Return an empty workplace."""
    return Workplace(tmp_path)


def test_a_promoted_run_is_what_later_runs_are_compared_with(work: Workplace) -> None:
    """Promote, then run again: file, exported span and exported metric have one score; other spans lower it."""
    first = work.run(_PROGRAM)
    assert first.returncode == 0, first.stderr
    golden = work.folder / "golden.jsonl.gz"
    promoted = run_program(["trace", "promote", first.stdout.strip(), "--to", str(golden)], clean_environ(work.root))
    assert promoted.code == 0, promoted.err
    scores = []
    for extra in ("0", "30"):
        with OtlpReceiver() as receiver:
            done = work.run(
                _PROGRAM,
                EXTRA=extra,
                RUNSPAN_GOLDEN_TRACE_PATH=str(golden),
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}",
            )
            (run,) = [span for span in receiver.spans if span.name == "run"]
            points = receiver.points_of("runspan.golden.score")
        assert done.returncode == 0, done.stderr
        (path,) = [path for path in work.runs if path.name == done.stdout.strip()]
        (ended,) = events_of(lines_of(path / "rank-00000.jsonl"), "span_end", id=run.span_id)
        score = ended["attributes"]["runspan.golden.score"]
        assert run.attributes["runspan.golden.score"] == score
        assert run.attributes["runspan.golden.equivalent"] is (score >= 0.85)
        assert points[-1].value == score
        assert ("differs from the golden trace" in done.stderr) == (score < 0.85)
        scores.append(score)
    assert scores[0] > 0.85 > scores[1]
