from __future__ import annotations

import gzip
import time
from itertools import combinations
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.errors import ConfigError, InvalidStateError, TraceFormatError
from runspan.tracefile import read
from runspan.tracefile._golden import (
    MAX_SPANS,
    SpanSequence,
    SpanTimeoutError,
    common_subsequence_length,
    score_spans,
)
from runspan.tracefile._promote import promote
from runspan.tracefile.events import Terminal, TraceEvent, encode
from runspan.tracefile.layout import TraceName
from support.captures import span_events
from support.traces import make_meta, make_metric, make_terminal, write_lines, write_parts

_NEVER = 2**63
_EMPTY = SpanSequence([], [], {})


def _run(*inside: TraceEvent, took_s: float = 1.0) -> list[TraceEvent]:
    return [make_meta(), *span_events("run", None, 0, int(took_s * 1e9), inside), make_terminal(took_s)]


def _epochs(*durations_ns: int) -> list[TraceEvent]:
    events = []
    for number, duration_ns in enumerate(durations_ns):
        start_ns = 1_000_000 * number
        events += span_events(f"e{number}", "run", start_ns, start_ns + duration_ns, name="epoch")
    return events


def _spans(path: Path, events: list[TraceEvent], open_until_ns: int | None = None) -> SpanSequence:
    write_lines(path, events)
    return SpanSequence.read(path, _NEVER, open_until_ns=open_until_ns)


def test_a_trace_is_equivalent_to_itself(tmp_path: Path) -> None:
    """The same spans, in the same order, for the same time, score 1."""
    spans = _spans(tmp_path / "t.jsonl", _run(*_epochs(10, 20, 30)))
    score = score_spans(spans, spans)
    assert (score.score, score.sequence_similarity, score.timing_variation, score.matching_share) == (
        1.0,
        1.0,
        0.0,
        1.0,
    )
    assert score.is_equivalent
    assert score_spans(_EMPTY, _EMPTY).score == 1.0


def test_traces_with_nothing_in_common_score_zero(tmp_path: Path) -> None:
    """No common name, path or duration is a score of 0, and so is nothing against something."""
    spans = _spans(tmp_path / "t.jsonl", _run())
    other = SpanSequence(["x"], [b"x"], {"x": [5]})
    assert score_spans(spans, other).score == 0.0
    assert score_spans(spans, _EMPTY).score == 0.0
    assert not score_spans(spans, other).is_equivalent


def test_the_score_is_made_of_three_parts(tmp_path: Path) -> None:
    """Half of the epochs, of double length: each part has its own share, with the weights 0.4, 0.2 and 0.4."""
    golden = _spans(tmp_path / "a.jsonl", _run(*_epochs(100, 100, 100), took_s=1e-6))
    candidate = _spans(tmp_path / "b.jsonl", _run(*_epochs(200), took_s=1e-6))
    score = score_spans(golden, candidate)
    assert score.sequence_similarity == 2 / 4
    assert score.matching_share == 2 / 4
    assert score.timing_variation == 100 / (1000 + 200)
    assert score.score == pytest.approx(0.4 * 0.5 + 0.2 * (1 - 100 / 1200) + 0.4 * 0.5)


def test_short_spans_do_not_make_the_timing_vary(tmp_path: Path) -> None:
    """A span of microseconds that takes ten times as long hardly counts beside one of a second."""
    golden = _spans(tmp_path / "a.jsonl", _run(*_epochs(1_000)))
    candidate = _spans(tmp_path / "b.jsonl", _run(*_epochs(10_000)))
    assert score_spans(golden, candidate).timing_variation < 1e-4


def test_a_span_elsewhere_in_the_tree_does_not_match(tmp_path: Path) -> None:
    """The same names in the same order below another parent keep the sequence, but not the share of matching spans."""
    below_run = [*span_events("a", "run", 0, 5), *span_events("b", "run", 6, 9)]
    below_a = span_events("a", "run", 0, 10, span_events("b", "a", 6, 9))
    score = score_spans(_spans(tmp_path / "a.jsonl", _run(*below_run)), _spans(tmp_path / "b.jsonl", _run(*below_a)))
    assert score.sequence_similarity == 1.0
    assert score.matching_share == pytest.approx(2 / 3)


def test_open_spans_of_a_trace_that_is_being_written_count_until_now(tmp_path: Path) -> None:
    """At finish `run` is still open: it counts until then; in a finished trace an open span has no duration."""
    events = _run()[:-2]
    assert _spans(tmp_path / "t.jsonl", events, open_until_ns=700).durations_ns == {"run": [700]}
    assert SpanSequence.read(tmp_path / "t.jsonl", _NEVER).durations_ns == {}


def test_all_parts_of_a_trace_are_read_and_only_its_spans(tmp_path: Path) -> None:
    """Parts are read as one trace, gzipped ones too; other lines, even broken ones, do not matter."""
    first, second = span_events("run", None, 0, 9)
    paths = write_parts(tmp_path, TraceName(0), [[make_metric(0), first], [second]])
    with paths[0].open("ab") as file:
        file.write(b'{"kind":"metric",\n')
    packed = paths[1].with_name(f"{paths[1].name}.gz")
    packed.write_bytes(gzip.compress(paths[1].read_bytes()))
    paths[1].unlink()
    assert SpanSequence.read(paths[0], _NEVER).durations_ns == {"run": [9]}


def test_reading_ends_at_the_deadline(tmp_path: Path) -> None:
    """A trace that takes too long to read is given up, so that the end of a run stays bounded."""
    write_lines(tmp_path / "t.jsonl", _run())
    with pytest.raises(SpanTimeoutError, match=r"t\.jsonl is too long"):
        SpanSequence.read(tmp_path / "t.jsonl", time.monotonic_ns() - 1)


def test_the_cost_of_long_traces_is_bounded(tmp_path: Path) -> None:
    """Of more spans than 16,384 the first are compared; the worst case takes no more than seconds on any machine."""
    line = [encode(event) for event in span_events("ID", "run", 0, 5, name="op")]
    with (tmp_path / "t.jsonl").open("wb") as file:
        file.writelines(map(encode, _run()[:2]))
        for number in range(MAX_SPANS + 10):
            file.writelines(each.replace(b"ID", b"%d" % number) for each in line)
    spans = SpanSequence.read(tmp_path / "t.jsonl", _NEVER)
    assert len(spans.names) == len(spans.paths) == MAX_SPANS
    names = [f"n{number % 97}" for number in range(MAX_SPANS)]
    began = time.process_time()
    assert common_subsequence_length(names, names[::-1]) > 0
    assert time.process_time() - began < 5


def _slow_length(first: str, second: str) -> int:
    """Return the length by trying all subsequences, longest first."""
    for length in range(min(len(first), len(second)), 0, -1):
        subsequences = set(combinations(first, length))
        if not subsequences.isdisjoint(combinations(second, length)):
            return length
    return 0


@given(st.text("abc", max_size=9), st.text("abc", max_size=9))
def test_the_common_subsequence_is_the_longest(first: str, second: str) -> None:
    """The bit-parallel length is what trying every subsequence gives."""
    assert common_subsequence_length(list(first), list(second)) == _slow_length(first, second)


_sequences = st.lists(st.sampled_from("abcd"), max_size=12).map(
    lambda names: SpanSequence(names, [name.encode() for name in names], {name: [len(name)] for name in names})
)


@given(_sequences, _sequences)
def test_a_score_is_a_share_and_symmetric(first: SpanSequence, second: SpanSequence) -> None:
    """Whatever the traces, the score lies from 0 to 1, and does not depend on which of the two is golden."""
    score = score_spans(first, second)
    assert 0.0 <= score.score <= 1.0
    assert msgspec.structs.asdict(score) == pytest.approx(msgspec.structs.asdict(score_spans(second, first)))


@pytest.mark.parametrize("name", ["golden.jsonl", "golden.jsonl.gz"])
def test_promote_copies_a_trace_as_one_file(tmp_path: Path, name: str) -> None:
    """The golden trace has all events of all parts, in one file that the reader takes, gzipped by its name."""
    events = _run(*_epochs(10))
    paths = write_parts(tmp_path / "run", TraceName(0), [events[1:3], events[3:]])
    target = tmp_path / name
    assert promote(paths[0], target) == len(events)
    assert list(read(target)) == events
    assert (target.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert [path.name for path in tmp_path.iterdir()] in ([name, "run"], ["run", name])


def test_promote_replaces_a_file_when_it_is_told_to(tmp_path: Path) -> None:
    """A golden trace is not overwritten by accident; an error leaves the old one as it was."""
    write_lines(tmp_path / "run.jsonl", _run())
    target = tmp_path / "golden.jsonl"
    target.write_text("old")
    with pytest.raises(ConfigError, match=r"golden\.jsonl is there already: give --force"):
        promote(tmp_path / "run.jsonl", target)
    write_lines(tmp_path / "bad.jsonl", _run()[:-1])
    with pytest.raises(InvalidStateError):
        promote(tmp_path / "bad.jsonl", target, overwrite=True)
    assert target.read_text() == "old"
    promote(tmp_path / "run.jsonl", target, overwrite=True)
    assert list(read(target)) == _run()


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (_run()[:-1], r"it is interrupted, last seen .*Z"),
        ([*_run()[:-1], Terminal("failed", 9, "failed", "ValueError: boom")], r"ended as failed \(ValueError: boom\)"),
        ([*_run()[:-1], Terminal("failed", 9, "cancelled", "SIGTERM")], r"ended as cancelled \(SIGTERM\)"),
        ([*_run()[:-2], make_terminal()], r"it has errors \(open_span"),
    ],
    ids=["interrupted", "failed", "cancelled", "unhealthy"],
)
def test_promote_takes_good_runs_only(tmp_path: Path, events: list[TraceEvent], reason: str) -> None:
    """What did not succeed, or is wrong with a trace, is told, and no file is left behind."""
    write_lines(tmp_path / "run.jsonl", events)
    with pytest.raises(InvalidStateError, match=rf"run\.jsonl cannot be a golden trace: .*{reason}"):
        promote(tmp_path / "run.jsonl", tmp_path / "golden.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]


def test_promote_takes_runs_of_this_schema_only(tmp_path: Path) -> None:
    """A trace of another program can be read, but no run is ever compared with it."""
    foreign = Path(__file__).parents[1] / "golden" / "candle-graph-10.jsonl"
    with pytest.raises(InvalidStateError, match="its schema is 'candle-graph/trace/10'"):
        promote(foreign, tmp_path / "golden.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_promote_tells_what_it_cannot_read_or_write(tmp_path: Path) -> None:
    """A source that is no trace, and a folder that is not there, are one clear error each."""
    (tmp_path / "no.jsonl").write_text("hello\n")
    with pytest.raises(TraceFormatError, match=r"no\.jsonl:1: "):
        promote(tmp_path / "no.jsonl", tmp_path / "golden.jsonl")
    write_lines(tmp_path / "run.jsonl", _run())
    with pytest.raises(ConfigError, match=r"golden\.jsonl cannot be written \(No such file or directory\)"):
        promote(tmp_path / "run.jsonl", tmp_path / "missing" / "golden.jsonl")
    with pytest.raises(ConfigError, match="cannot be written"):
        promote(tmp_path / "run.jsonl", tmp_path / "run.jsonl" / "golden.jsonl")
