from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runspan.distributed import RankContext, format_parent

#: Prints the run id in one write, so that two ranks' lines do not mix.
RANK = """
import os
from runspan.distributed import RankContext, resolve_run_id
os.write(1, f"{resolve_run_id(os.environ, RankContext.from_env(os.environ))}\\n".encode())
"""
#: Starts both ranks of a node as torchrun does, rank 1 below a shell of its own, and prints what they say.
LAUNCHER = """
import os, subprocess, sys
ranks = []
for rank in range(2):
    environ = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
               "GROUP_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "none"}
    command = [sys.executable, "-c", sys.argv[1]]
    if rank == 1:
        command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    ranks.append(subprocess.Popen(command, env=environ))
sys.exit(max(each.wait() for each in ranks))
"""
SHOW_ENVIRONMENT = """
import os
from runspan.distributed import RankContext, parent_of
context = RankContext.from_env(os.environ)
print(context.rank, context.world_size, parent_of(os.environ).owns(context), os.environ["KEPT"])
"""


def _launch() -> list[str]:
    environ = {name: value for name, value in os.environ.items() if name not in {"RANK", "LOCAL_RANK", "WORLD_SIZE"}}
    process = subprocess.run(
        [sys.executable, "-c", LAUNCHER, RANK], capture_output=True, text=True, timeout=60, check=True, env=environ
    )
    return process.stdout.split()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the id is derived from what Linux shows in /proc")
def test_ranks_of_one_launch_agree_and_launches_differ() -> None:
    """Two real ranks come to one id by themselves, also through a wrapper script; another launch comes to another."""
    first, second = _launch(), _launch()
    assert len(first) == len(second) == 2
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert first[0] != second[0]


def test_a_childs_place_is_told_by_its_environment() -> None:
    """Case 13: of three real children with a full environment, the one given a rank of its own is a rank."""
    parent = format_parent(RankContext(1, 2), attempt=0)
    base = {**os.environ, "KEPT": "kept", "RUNSPAN_PARENT": parent}
    told = []
    for rank in (
        {},
        {"RUNSPAN_RANK": "1", "RUNSPAN_WORLD_SIZE": "2"},
        {"RUNSPAN_RANK": "1", "RUNSPAN_WORLD_SIZE": "4"},
    ):
        process = subprocess.run(
            [sys.executable, "-c", SHOW_ENVIRONMENT],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**base, **rank},
        )
        told.append(process.stdout.strip())
    assert told == ["0 1 True kept", "1 2 True kept", "1 4 False kept"]
