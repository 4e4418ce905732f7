from __future__ import annotations

import dataclasses
import os
import socket
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.distributed import Launcher, ParentRank, RankContext, format_parent, parent_of, resolve_run_id
from runspan.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

RUNSPAN = {"RUNSPAN_RANK": "5", "RUNSPAN_WORLD_SIZE": "8"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "job-7",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-1@1",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
SLURM = {
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "4",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "6", "RUNSPAN_WORLD_SIZE": "7"}


def test_launchers_are_looked_at_in_order() -> None:
    """The first complete set wins and the others are ignored: runspan, torchrun, Open MPI, PMI, SLURM, Kubernetes."""
    sets = [
        (RUNSPAN, Launcher.ENVIRONMENT, 5, 8),
        (TORCHRUN, Launcher.TORCHRUN, 3, 4),
        (OPEN_MPI, Launcher.OPEN_MPI, 2, 6),
        (PMI, Launcher.PMI, 1, 2),
        (SLURM, Launcher.SLURM, 0, 2),
    ]
    for index, (_, launcher, rank, world_size) in enumerate(sets):
        environ = {name: value for each, *_ in sets[index:] for name, value in each.items()}
        context = RankContext.from_env(environ)
        assert (context.launcher, context.rank, context.world_size) == (launcher, rank, world_size)
    context = RankContext.from_env(KUBERNETES)
    assert (context.launcher, context.rank, context.world_size) == (Launcher.KUBERNETES, 6, 7)


def test_torchrun_tells_everything() -> None:
    """Local rank, node and restart count are read too."""
    assert RankContext.from_env(TORCHRUN, host="h") == RankContext(
        3, 4, local_rank=1, node_rank=1, attempt=2, launcher="torchrun", host="h"
    )


@pytest.mark.parametrize("missing", ["WORLD_SIZE", "RANK", "LOCAL_RANK"])
def test_an_incomplete_set_is_passed_over(missing: str) -> None:
    """A set with a part missing, or blank, leaves the next one its turn."""
    partial = {name: value for name, value in TORCHRUN.items() if name != missing}
    assert RankContext.from_env({**partial, **SLURM}).launcher == Launcher.SLURM
    assert RankContext.from_env({**TORCHRUN, missing: " ", **SLURM}).launcher == Launcher.SLURM


def test_slurm_counts_inside_an_srun_step_only() -> None:
    """A batch script or interactive shell, whose SLURM_PROCID is 0 everywhere, is a single process."""
    batch = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_ID": "77", "SLURM_NTASKS": "8"}
    assert RankContext.from_env(batch).launcher == Launcher.SINGLE
    for special_step in ("4294967291", "4294967290", "batch"):
        context = RankContext.from_env({**SLURM, "SLURM_STEP_ID": special_step})
        assert (context.launcher, context.world_size) == (Launcher.SINGLE, 1)


def test_rank_and_world_size_alone_count_before_a_single_process() -> None:
    """Operators that set only RANK and WORLD_SIZE are understood, after every other launcher."""
    alone = {"RANK": "1", "WORLD_SIZE": "2"}
    assert RankContext.from_env(alone).rank == 1
    assert RankContext.from_env({**alone, **SLURM}).launcher == Launcher.SLURM


def test_nothing_set_is_a_single_process() -> None:
    """Without variables the process is rank 0 of 1 on this host."""
    context = RankContext.from_env({})
    assert context == RankContext(launcher=Launcher.SINGLE)
    assert (context.rank, context.world_size, context.attempt, context.host) == (0, 1, 0, socket.gethostname())


@pytest.mark.parametrize(
    "environ",
    [
        {**RUNSPAN, "RUNSPAN_RANK": "8"},
        {**RUNSPAN, "RUNSPAN_RANK": "-1"},
        {**RUNSPAN, "RUNSPAN_RANK": "one"},
        {**RUNSPAN, "RUNSPAN_WORLD_SIZE": "0"},
        {**TORCHRUN, "RANK": "4"},
        {**TORCHRUN, "LOCAL_RANK": "2"},
        {**TORCHRUN, "LOCAL_WORLD_SIZE": "5"},
        {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "x"},
        {**SLURM, "SLURM_PROCID": "2"},
        {**KUBERNETES, "JOB_COMPLETION_INDEX": "7"},
        {"RUNSPAN_RANK": "0"},
    ],
)
def test_a_contradiction_inside_the_winning_set_names_its_variables(environ: dict[str, str]) -> None:
    """A rank outside the world, an impossible local rank and an unreadable number are refused by name."""
    with pytest.raises(ConfigError) as caught:
        RankContext.from_env(environ)
    assert any(name in str(caught.value) for name in environ)


def test_a_contradiction_in_a_losing_set_is_ignored() -> None:
    """Only the winning set is read."""
    assert RankContext.from_env({**RUNSPAN, "RANK": "9", "WORLD_SIZE": "x", "LOCAL_RANK": "?"}).rank == 5


@given(st.dictionaries(st.sampled_from([*TORCHRUN, *SLURM, *RUNSPAN]), st.text(max_size=4)))
def test_any_environment_gives_a_valid_context_or_a_config_error(environ: dict[str, str]) -> None:
    """Whatever the variables hold, a context that comes out is consistent."""
    try:
        context = RankContext.from_env(environ)
    except ConfigError:
        return
    assert 0 <= context.rank < context.world_size


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 1},
        {"rank": -1, "world_size": 2},
        {"world_size": 0},
        {"rank": True, "world_size": 2},
        {"rank": 0.0},
        {"local_rank": -1},
        {"attempt": "0"},
        {"launcher": "ssh"},
    ],
)
def test_a_context_by_hand_is_checked(wrong: dict[str, Any]) -> None:
    """Every field is validated when the context is made."""
    with pytest.raises(ConfigError):
        RankContext(**wrong)


def test_the_local_rank_defaults_to_the_rank() -> None:
    """By hand, ranks are taken to be on one node."""
    context = RankContext(2, 4)
    assert (context.local_rank, context.launcher) == (2, Launcher.MANUAL)
    assert dataclasses.replace(context, attempt=3) == RankContext(2, 4, attempt=3)


@pytest.mark.parametrize(
    ("environ", "run_id"),
    [
        (TORCHRUN, "job-7"),
        (OPEN_MPI, "prterun-1@1"),
        (SLURM, "77.4"),
        ({**SLURM, **TORCHRUN}, "job-7"),
        ({**SLURM, "RUNSPAN_RUN_ID": "mine"}, "mine"),
        ({**KUBERNETES, "RUNSPAN_RUN_ID": "mine"}, "mine"),
    ],
)
def test_the_run_id_is_the_environments_or_the_winning_launchers(environ: dict[str, str], run_id: str) -> None:
    """RUNSPAN_RUN_ID beats the launcher's id, and the id of a launcher that did not win is not used."""
    assert resolve_run_id(environ, RankContext.from_env(environ)) == run_id


def test_an_id_by_hand_beats_everything_and_stays_as_it_is() -> None:
    """Any string that is not blank is an id."""
    assert resolve_run_id({"RUNSPAN_RUN_ID": "x"}, RankContext(), " ../é ") == " ../é "
    for blank in ("", "  ", 5):
        with pytest.raises(ConfigError, match="run_id"):
            resolve_run_id({}, RankContext(), blank)  # type: ignore[arg-type]


def test_a_single_process_gets_a_uuid7() -> None:
    """Without an id a single process makes one."""
    run_id = resolve_run_id({}, RankContext.from_env({}))
    assert uuid.UUID(run_id).version == 7
    assert resolve_run_id({}, RankContext(), new_id=lambda: "made") == "made"


@pytest.mark.parametrize("no_id", ["none", "", None])
def test_torchruns_default_is_no_id(no_id: str | None) -> None:
    """The word none, and a blank, are not ids: on several nodes that is a ConfigError that says what to set."""
    environ = {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"}
    if no_id is not None:
        environ["TORCHELASTIC_RUN_ID"] = no_id
    with pytest.raises(ConfigError, match=r"RUNSPAN_RUN_ID.*--rdzv-id"):
        resolve_run_id(environ, RankContext.from_env(environ))


@pytest.mark.parametrize(
    "environ",
    [
        RUNSPAN,
        KUBERNETES,
        {"RANK": "0", "WORLD_SIZE": "2"},
        {**PMI, "MPI_LOCALNRANKS": "1"},
        {**PMI, "SLURM_STEP_NUM_NODES": "2"},
        {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"},
        {name: value for name, value in OPEN_MPI.items() if name != "PMIX_NAMESPACE"},
    ],
)
def test_several_ranks_with_nothing_to_agree_on_are_told_what_to_set(environ: dict[str, str]) -> None:
    """Ranks by hand, and ranks on several nodes, need RUNSPAN_RUN_ID."""
    with pytest.raises(ConfigError, match="set RUNSPAN_RUN_ID"):
        resolve_run_id(environ, RankContext.from_env(environ))


def _fake_proc(root: Path, *, boot: str = "b", start: str = "500", marked: bool = False) -> Path:
    """Write a /proc whose calling process has a parent with the given start time, below pid 7 (start 900)."""
    (root / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
    (root / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
    processes = ((os.getppid(), start, b"LOCAL_RANK=0\0" if marked else b"A=LOCAL_RANK=0\0"), (7, "900", b""))
    for pid, ticks, environ in processes:
        (root / str(pid)).mkdir(exist_ok=True)
        (root / str(pid) / "stat").write_text(f"{pid} (a) b ) S 7 {'0 ' * 17}{ticks} 0 0\n")
        (root / str(pid) / "environ").write_bytes(environ)
    return root


def test_the_derived_id_is_the_launchers_identity(tmp_path: Path) -> None:
    """Boot, launcher's pid and start time make the id, so that another boot or a reused pid is another run."""
    environ = {**TORCHRUN, "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "none"}
    context = RankContext.from_env(environ)

    def derive(**kwargs: Any) -> str:
        return resolve_run_id(environ, context, proc=_fake_proc(tmp_path, **kwargs))

    first = derive()
    assert first == derive()
    assert first.startswith("run-")
    assert len({first, derive(boot="c"), derive(start="501")}) == 3


def test_a_wrapper_between_launcher_and_rank_is_passed_over(tmp_path: Path) -> None:
    """A parent that has the rank's variables itself is no launcher: the one above it is."""
    environ = {**TORCHRUN, "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "none"}
    context = RankContext.from_env(environ)
    wrapped = {
        resolve_run_id(environ, context, proc=_fake_proc(tmp_path, marked=True, start=start)) for start in ("1", "2")
    }
    assert len(wrapped) == 1


def test_without_a_kernel_that_shows_processes_the_id_must_be_set(tmp_path: Path) -> None:
    """Where nothing can be derived the ConfigError says what to set."""
    environ = {**PMI, "MPI_LOCALNRANKS": "2"}
    with pytest.raises(ConfigError, match="RUNSPAN_RUN_ID"):
        resolve_run_id(environ, RankContext.from_env(environ), proc=tmp_path)


def test_the_parent_round_trips() -> None:
    """What format_parent writes parent_of reads."""
    text = format_parent(RankContext(3, 8), attempt=2)
    assert text == "3/8/2"
    assert parent_of({"RUNSPAN_PARENT": text}) == ParentRank(3, 8, 2)
    assert parent_of({}) is None
    assert parent_of({"RUNSPAN_PARENT": " "}) is None


@pytest.mark.parametrize("text", ["3", "3/8", "8/8/0", "a/b/c", "-1/2/0", "1/2/3/4", "1/2/\u0663"])
def test_a_malformed_parent_is_a_config_error(text: str) -> None:
    """The error names the variable, its value and the form."""
    with pytest.raises(ConfigError, match="RUNSPAN_PARENT="):
        parent_of({"RUNSPAN_PARENT": text})


def test_a_parent_that_holds_a_secret_is_not_shown_whole() -> None:
    """The error shows 200 characters of the variable, and no credentials."""
    with pytest.raises(ConfigError, match="RUNSPAN_PARENT=") as caught:
        parent_of({"RUNSPAN_PARENT": f"http://u:hunter2@host/{'x' * 100_000}"})
    assert "hunter2" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_child_with_a_rank_of_its_own_is_a_rank() -> None:
    """Case 13: a launcher's child that is given a rank is a rank; one that inherits its parent's rank is a child."""
    launcher = ParentRank(0, 1, 0)
    assert not launcher.owns(RankContext.from_env({"RUNSPAN_RANK": "0", "RUNSPAN_WORLD_SIZE": "2"}))
    assert launcher.owns(RankContext.from_env({}))
    rank = ParentRank(5, 8, 1)
    assert rank.owns(RankContext.from_env(RUNSPAN))
    assert not rank.owns(RankContext(5, 8))
