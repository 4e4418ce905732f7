from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runspan.records import MetricPoint, RunStatus
from runspan.storage import InMemoryStorage, SqlStorage
from runspan.storage._filesystem import network_file_system
from runspan.storage._rules import AttemptRow, merge_by_rank, run_state, sample_positions, superseded_from

R, S, F, C = RunStatus.RUNNING, RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.CANCELLED


def row(rank: int, attempt: int, status: RunStatus) -> AttemptRow:
    """Build an attempt that starts at 10 + rank and ends at 20 + rank, with its status as reason."""
    end_time = 20 + rank if status.is_final else None
    return AttemptRow(rank, attempt, status, f"{status} of {rank}", 10 + rank, end_time)


@pytest.mark.parametrize(
    ("world_size", "rows", "expected"),
    [
        (1, [], RunStatus.PENDING),
        (1, [(0, 0, R)], R),
        (1, [(0, 0, F), (0, 1, S)], S),
        (1, [(0, 0, R), (0, 1, S)], S),
        (1, [(0, 0, F), (0, 1, R)], R),
        (4, [(0, 0, C)], C),
        (4, [(1, 0, S)], R),
        (2, [(0, 0, S), (1, 0, R)], R),
        (3, [(0, 0, S), (1, 0, S)], R),
        (2, [(0, 0, S), (1, 0, C)], C),
        (3, [(0, 0, C), (1, 0, F), (2, 0, S)], F),
        (2, [(0, 0, S), (1, 0, F), (1, 1, S)], S),
    ],
)
def test_status_over_ranks_and_attempts(
    world_size: int, rows: list[tuple[int, int, RunStatus]], expected: RunStatus
) -> None:
    """Case 23: each rank's newest attempt counts, all ranks must have ended, and the worst status wins."""
    assert run_state([row(*values) for values in rows], world_size).status is expected


def test_reason_and_times_come_from_the_attempts() -> None:
    """The reason is that of the lowest rank with the worst status; the run spans from first start to last end."""
    state = run_state([row(0, 0, S), row(1, 0, F), row(2, 0, F)], 3)
    assert (state.reason, state.start_time, state.end_time, state.attempts) == ("failed of 1", 10, 22, 1)


def test_each_attempt_is_cut_where_the_lowest_later_one_begins() -> None:
    """Superseding looks at all later attempts of the same rank, and the last attempt is never cut."""
    first_steps = {(0, 0): 0, (0, 1): 50, (0, 2): 80, (0, 5): 20, (1, 0): 3}
    expected = {(0, 0): 20, (0, 1): 20, (0, 2): 20, (0, 5): None, (1, 0): None}
    assert superseded_from(first_steps) == expected


@given(total=st.integers(0, 3000), limit=st.integers(0, 500))
def test_sample_positions_are_distinct_and_hold_both_ends(total: int, limit: int) -> None:
    """Positions rise strictly, are as many as asked for or there are, and hold the first (from 2 on) and the last."""
    positions = sample_positions(total, limit)
    assert len(positions) == min(total, limit)
    assert positions == sorted(set(positions))
    if positions:
        assert positions[-1] == total - 1
        assert positions[0] == 0 or limit == 1


def test_lowest_rank_holds_in_a_merge() -> None:
    """Of a key that several ranks have the lowest rank's value is taken, whatever order they came in."""
    assert merge_by_rank({2: {"a": 2, "c": 2}, 0: {"a": 0}, 1: {"c": 1, "a": 1}}) == {"a": 0, "c": 1}


POINT = st.builds(
    MetricPoint,
    key=st.sampled_from(["a", "b"]),
    step=st.integers(0, 12),
    value=st.floats(allow_nan=False),
    time_unix_nano=st.integers(0, 6),
    rank=st.integers(0, 2),
    attempt=st.integers(0, 3),
)


@settings(max_examples=15, deadline=None)
@given(batches=st.lists(st.lists(POINT, max_size=25), max_size=4), limit=st.integers(0, 12))
def test_sqlite_answers_as_memory_does(batches: list[list[MetricPoint]], limit: int) -> None:
    """Whatever points are logged, both backends give the same answer to every question about them."""
    with tempfile.TemporaryDirectory() as folder:
        memory, sqlite = InMemoryStorage(), SqlStorage(Path(folder) / "x.db")
        for storage in (memory, sqlite):
            storage.create_run(storage.create_experiment("e"), "r", 3)
            for batch in batches:
                storage.log_metrics("r", batch)
        assert sqlite.metric_keys("r") == memory.metric_keys("r")
        for rank in (None, 0, 1):
            for attempt in (None, 0, 2):
                found = sqlite.get_all_metrics("r", rank=rank, attempt=attempt)
                assert found == memory.get_all_metrics("r", rank=rank, attempt=attempt)
                for key in ("a", "b"):
                    sample = sqlite.sample_metrics("r", key, limit, rank=rank, attempt=attempt)
                    assert sample == memory.sample_metrics("r", key, limit, rank=rank, attempt=attempt)
        for rank in (0, 1):
            assert sqlite.recent_metrics("r", limit, rank=rank) == memory.recent_metrics("r", limit, rank=rank)
            assert sqlite.next_steps("r", rank) == memory.next_steps("r", rank)
        sqlite.close()


MOUNTINFO = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:40 / /home rw - nfs4 server:/home rw,vers=4.2
23 22 8:2 / /home/local rw master:1 - xfs /dev/sdb1 rw
24 21 0:41 / /mnt/with\\040space rw - lustre mgs@tcp:/fs rw
25 21 0:42 / /stacked rw - ext4 /dev/sdc1 rw
26 21 0:43 / /stacked rw - cifs //server/share rw
27 21 0:44 / /cloud rw - fuse.gcsfuse bucket rw
28 21 0:45 / /usb rw - fuseblk /dev/sdd1 rw
a broken line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/x.db", None),
        ("/home/user/x.db", "nfs4"),
        ("/home/local/x.db", None),
        ("/homestead/x.db", None),
        ("/mnt/with space/x.db", "lustre"),
        ("/stacked/x.db", "cifs"),
        ("/cloud/x.db", "fuse.gcsfuse"),
        ("/usb/x.db", None),
    ],
)
def test_network_file_systems_are_told_by_the_deepest_mount(path: str, expected: str | None, tmp_path: Path) -> None:
    """Case 25: the mount that holds the path decides, the later one where two are stacked."""
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTINFO)
    assert network_file_system(Path(path), table) == expected


def test_symlink_into_a_network_file_system_is_followed(tmp_path: Path) -> None:
    """A path is judged by where it leads."""
    (tmp_path / "remote").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "remote")
    table = tmp_path / "mountinfo"
    table.write_text(f"{MOUNTINFO}40 21 0:50 / {tmp_path / 'remote'} rw - nfs server:/x rw\n")
    assert network_file_system(tmp_path / "link" / "x.db", table) == "nfs"


def test_system_without_a_mount_table_counts_as_local(tmp_path: Path) -> None:
    """Where the mounts cannot be read nothing is said."""
    assert network_file_system(tmp_path / "x.db", tmp_path / "missing") is None
