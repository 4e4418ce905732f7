from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.errors import ConfigError
from runspan.tracefile.layout import RunDirectory, TraceName, encode_run_id, first_parts

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMES = st.builds(
    TraceName,
    rank=st.integers(0, 10**7),
    attempt=st.integers(0, 10**4),
    child=st.none() | st.from_regex(r"[1-9][0-9]{0,6}(-[1-9][0-9]{0,3})?", fullmatch=True),
    part=st.integers(0, 10**5),
    compressed=st.booleans(),
)


def _touch(folder: Path, names: Iterable[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@given(_NAMES)
def test_a_trace_name_survives_the_file_system(name: TraceName) -> None:
    """A name read back from its file name is the same name."""
    assert TraceName.parse(name.filename) == name


@given(_NAMES)
def test_the_next_part_has_the_same_stem(name: TraceName) -> None:
    """The part that follows is plain, one higher, and of the same trace."""
    following = name.next_part()
    assert (following.stem, following.part, following.compressed) == (name.stem, name.part + 1, False)


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("rank-00000.jsonl", TraceName(0)),
        ("rank-00000.part-0001.jsonl.gz", TraceName(0, part=1, compressed=True)),
        ("rank-00012.attempt-1.jsonl", TraceName(12, attempt=1)),
        ("rank-00000.attempt-1.child-77-2.jsonl", TraceName(0, attempt=1, child="77-2")),
        ("rank-123456.child-9.part-12345.jsonl", TraceName(123456, child="9", part=12345)),
    ],
)
def test_file_names_are_the_formats_own(filename: str, name: TraceName) -> None:
    """The spelled-out names of the format are read and written letter for letter."""
    assert TraceName.parse(filename) == name
    assert name.filename == filename


@pytest.mark.parametrize(
    "filename",
    [
        "rank-0.jsonl",
        "rank-000000001.jsonl",
        "rank-00000.attempt-0.jsonl",
        "rank-00000.attempt-01.jsonl",
        "rank-00000.part-1.jsonl",
        "rank-00000.part-0000.jsonl",
        "rank-00000.jsonl.gz.tmp",
        ".rank-00000.jsonl.gz.tmp",
        "rank-00000.log",
        "rank-00000.jsonl\n",
        "rank-0000\N{ARABIC-INDIC DIGIT THREE}.jsonl",
        "",
    ],
)
def test_other_file_names_are_not_taken_for_traces(filename: str) -> None:
    """A name that the writer would not give is no trace file's: two spellings of one trace cannot meet."""
    assert TraceName.parse(filename) is None


@given(st.text(min_size=1) | st.sampled_from([".", "..", "../x", "/etc/passwd", "a/../../b", "~", "x" * 300, "\ud800"]))
def test_a_run_id_never_leaves_the_folder(run_id: str) -> None:
    """Case 26: whatever a run id holds, its directory is a direct child of the run directories' folder."""
    folder = Path("/data/runs")
    path = RunDirectory.of_run(folder, run_id).path
    assert path.parent == folder
    assert path.name not in {"", ".", ".."}
    assert "/" not in path.name
    assert len(path.name.encode()) <= 255


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_different_run_ids_get_different_folders(one: str, other: str) -> None:
    """Two run ids share a folder only if they are equal, long ones included."""
    assert (encode_run_id(one) == encode_run_id(other)) == (one == other)


def test_long_run_ids_with_one_beginning_are_told_apart() -> None:
    """A run id cut at 120 bytes carries a hash of the whole."""
    assert encode_run_id("é" * 300 + "a") != encode_run_id("é" * 300 + "b")
    assert len(encode_run_id("x" * 300)) == 120 + 1 + 16


def test_an_empty_run_id_is_refused() -> None:
    """An empty run id would be the folder of all runs: it is an error."""
    with pytest.raises(ConfigError, match="run id cannot be empty"):
        encode_run_id("")


def test_ranks_above_256_get_folders(tmp_path: Path) -> None:
    """Up to 256 ranks lie flat; above, each 256 share a folder, and both are found."""
    directory = RunDirectory(tmp_path)
    assert directory.rank_folder(255, 256) == tmp_path
    assert directory.rank_folder(256, 257) == tmp_path / "ranks" / "00001"
    _touch(directory.rank_folder(0, 1024), ["rank-00000.jsonl"])
    _touch(directory.rank_folder(700, 1024), ["rank-00700.jsonl"])
    assert [name.rank for name, _ in directory.trace_files()] == [0, 700]


def test_trace_files_are_sorted_and_plain_parts_win(tmp_path: Path) -> None:
    """Files come by rank, attempt, child and part; of a part that is there twice, the plain file."""
    names = [
        "rank-00001.jsonl",
        "rank-00000.part-0001.jsonl",
        "rank-00000.part-0001.jsonl.gz",
        "rank-00000.jsonl.gz",
        "rank-00000.attempt-1.jsonl",
        "rank-00000.child-7.jsonl",
        "rank-00000.log",
    ]
    _touch(tmp_path, names)
    assert [path.name for _, path in RunDirectory(tmp_path).trace_files()] == [
        "rank-00000.jsonl.gz",
        "rank-00000.part-0001.jsonl",
        "rank-00000.child-7.jsonl",
        "rank-00000.attempt-1.jsonl",
        "rank-00001.jsonl",
    ]


def test_attempts_of_a_rank_count_gzipped_files(tmp_path: Path) -> None:
    """A rank's attempts are those that have a file, gzipped or not, children and other ranks aside."""
    _touch(
        tmp_path,
        ["rank-00000.jsonl.gz", "rank-00000.attempt-2.jsonl", "rank-00000.attempt-5.child-1.jsonl", "rank-00001.jsonl"],
    )
    assert RunDirectory(tmp_path).attempts_of(0) == [0, 2]
    assert RunDirectory(tmp_path).attempts_of(3) == []


def test_captures_are_listed_by_folder(tmp_path: Path) -> None:
    """Captured steps' files are found by their capture, ranks above 256 included, and are no run traces."""
    _touch(tmp_path / "captures" / "update-000000101", ["rank-00000.jsonl"])
    _touch(tmp_path / "captures" / "update-000000101" / "ranks" / "00001", ["rank-00256.jsonl"])
    directory = RunDirectory(tmp_path)
    assert directory.trace_files() == []
    captures = directory.capture_files()
    assert [name.rank for name, _ in captures["update-000000101"]] == [0, 256]


@pytest.mark.parametrize("world_size", [1, 1024])
def test_a_trace_file_tells_its_run_and_captured_step(tmp_path: Path, world_size: int) -> None:
    """Every file that the layout places, below rank folders and captures too, leads back to its run directory."""
    run = RunDirectory(tmp_path / "run-a")
    capture = "update-000000101"
    for folder, captured in (
        (run.rank_folder(300, world_size), None),
        (run.capture_folder(capture, 300, world_size), capture),
    ):
        directory, found = RunDirectory.of_trace(folder / TraceName(300).filename)
        assert (directory.path, found) == (run.path, captured)


def test_a_trace_goes_by_the_first_of_its_parts_that_is_there(tmp_path: Path) -> None:
    """Attempts and children are traces of their own; a first part that was deleted is stood in for by the next."""
    run = RunDirectory(tmp_path)
    names = ["rank-00000.jsonl", "rank-00000.part-0001.jsonl", "rank-00000.child-7.jsonl", "rank-00001.part-0002.jsonl"]
    _touch(tmp_path, names)
    assert [path.name for _, path in first_parts(run.trace_files())] == [names[0], *names[2:]]


def test_asking_for_paths_creates_nothing(tmp_path: Path) -> None:
    """The layout only names paths."""
    directory = RunDirectory.of_run(tmp_path, "run")
    assert directory.artifacts == tmp_path / "run" / "artifacts"
    assert directory.gate == tmp_path / "run" / "gate"
    assert directory.log_file(3, 4) == tmp_path / "run" / "rank-00003.log"
    assert directory.trace_files() == []
    assert list(tmp_path.iterdir()) == []
