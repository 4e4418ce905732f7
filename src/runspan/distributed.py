"""Which rank of which run this process is, from what the launcher left in the environment."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from runspan import ids
from runspan._env import EnvReader, show_value
from runspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Launcher", "ParentRank", "RankContext", "format_parent", "parent_of", "resolve_run_id"]

_PARENT = "RUNSPAN_PARENT"
_PARENT_VALUE = re.compile(r"(\d{1,9})/(\d{1,9})/(\d{1,9})", re.ASCII)
#: Steps with a number from here on are not srun's: 0xfffffffb is a batch script, 0xfffffffa an interactive shell.
_SLURM_FIRST_SPECIAL_STEP = 0xFFFF_FFF0
_SET_RUN_ID = "set RUNSPAN_RUN_ID to the same value on every rank"


class Launcher(StrEnum):
    """Who started the ranks and told them their numbers."""

    MANUAL = "manual"
    ENVIRONMENT = "environment"
    TORCHRUN = "torchrun"
    OPEN_MPI = "openmpi"
    PMI = "pmi"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    SINGLE = "single"


@dataclass(frozen=True, slots=True, init=False)
class RankContext:
    """The place of this process among the run's processes.

    Attributes:
        rank: from 0 to ``world_size`` - 1.
        world_size: how many ranks there are.
        local_rank: the rank's number on its node; the rank itself where nothing says otherwise.
        node_rank: the node's number.
        attempt: how many times the launcher has restarted this rank.
        launcher: who said so.
        host: the machine's name.

    Raises:
        ConfigError: a value is no whole number from 0 up, or the rank is not below the world size.
    """

    rank: int
    world_size: int
    local_rank: int
    node_rank: int
    attempt: int
    launcher: Launcher
    host: str

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        *,
        local_rank: int | None = None,
        node_rank: int = 0,
        attempt: int = 0,
        launcher: Launcher | str = Launcher.MANUAL,
        host: str | None = None,
    ) -> None:
        counts = {
            "rank": rank,
            "world_size": world_size,
            "local_rank": rank if local_rank is None else local_rank,
            "node_rank": node_rank,
            "attempt": attempt,
        }
        for name, value in counts.items():
            if type(value) is not int or value < 0:
                raise ConfigError(f"{name}={show_value(value)} cannot be used: it takes a whole number from 0 up")
            object.__setattr__(self, name, value)
        if rank >= world_size:
            raise ConfigError(f"rank={rank} cannot be used with world_size={world_size}: ranks count from 0")
        try:
            object.__setattr__(self, "launcher", Launcher(launcher))
        except ValueError:
            raise ConfigError(
                f"launcher={show_value(launcher)} is not known: it takes one of {', '.join(Launcher)}"
            ) from None
        if host is not None and (not isinstance(host, str) or not host):
            raise ConfigError(f"host={show_value(host)} cannot be used: it takes a machine's name")
        object.__setattr__(self, "host", socket.gethostname() if host is None else host)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, host: str | None = None) -> RankContext:
        """Read the first complete set of variables; the other sets are ignored.

        In order: runspan's own, torchrun, Open MPI, PMI (MPICH, Intel MPI), a SLURM step, a Kubernetes indexed job,
        ``RANK`` and ``WORLD_SIZE`` alone (as operators set them), else a single process.

        Args:
            environ: the variables.
            host: the machine's name; None: the system's.

        Raises:
            ConfigError: a contradiction or an unreadable number inside the winning set, or ``RUNSPAN_RANK`` without
                ``RUNSPAN_WORLD_SIZE`` where no other set is complete.
        """
        env = EnvReader(environ)
        for variables in _SETS:
            if variables.is_complete(env):
                return variables.read(env, host)
        if env.text("RUNSPAN_RANK") is not None:
            raise ConfigError("RUNSPAN_RANK is set without RUNSPAN_WORLD_SIZE: set both, or neither")
        return cls(launcher=Launcher.SINGLE, host=host)


@dataclass(frozen=True, slots=True)
class _VariableSet:
    """The variables by which one launcher tells a process its rank; an empty name: it does not say."""

    launcher: Launcher
    rank: str
    world_size: str
    local_rank: str = ""
    local_world_size: str = ""
    node_rank: str = ""
    attempt: str = ""
    also_required: tuple[str, ...] = ()

    def is_complete(self, env: EnvReader) -> bool:
        if self.launcher == Launcher.SLURM and not _is_srun_step(env.text("SLURM_STEP_ID")):
            return False
        return all(env.text(name) is not None for name in (self.rank, self.world_size, *self.also_required))

    def read(self, env: EnvReader, host: str | None) -> RankContext:
        rank = env.integer(self.rank) or 0
        world_size = env.integer(self.world_size, minimum=1) or 1
        if rank >= world_size:
            raise ConfigError(
                f"{self.rank}={rank} contradicts {self.world_size}={world_size}: ranks count from 0 to {world_size - 1}"
            )
        local_rank = env.integer(self.local_rank)
        local_world_size = env.integer(self.local_world_size, minimum=1)
        if local_world_size is not None:
            if local_world_size > world_size:
                raise ConfigError(
                    f"{self.local_world_size}={local_world_size} contradicts {self.world_size}={world_size}: "
                    "a node cannot have more ranks than the run"
                )
            if local_rank is not None and local_rank >= local_world_size:
                raise ConfigError(
                    f"{self.local_rank}={local_rank} contradicts {self.local_world_size}={local_world_size}: "
                    f"local ranks count from 0 to {local_world_size - 1}"
                )
        return RankContext(
            rank,
            world_size,
            local_rank=local_rank,
            node_rank=env.integer(self.node_rank) or 0,
            attempt=env.integer(self.attempt) or 0,
            launcher=self.launcher,
            host=host,
        )


def _is_srun_step(step_id: str | None) -> bool:
    """Whether a step was started by srun: a batch script and an interactive shell are steps too, with special ids."""
    return step_id is None or (step_id.isdecimal() and int(step_id) < _SLURM_FIRST_SPECIAL_STEP)


#: In the order in which they are looked at.
_SETS = (
    _VariableSet(Launcher.ENVIRONMENT, rank="RUNSPAN_RANK", world_size="RUNSPAN_WORLD_SIZE"),
    _VariableSet(
        Launcher.TORCHRUN,
        rank="RANK",
        world_size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_world_size="LOCAL_WORLD_SIZE",
        node_rank="GROUP_RANK",
        attempt="TORCHELASTIC_RESTART_COUNT",
        also_required=("LOCAL_RANK",),
    ),
    _VariableSet(
        Launcher.OPEN_MPI,
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _VariableSet(
        Launcher.PMI,
        rank="PMI_RANK",
        world_size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_world_size="MPI_LOCALNRANKS",
    ),
    _VariableSet(
        Launcher.SLURM,
        rank="SLURM_PROCID",
        world_size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        node_rank="SLURM_NODEID",
    ),
    _VariableSet(Launcher.KUBERNETES, rank="JOB_COMPLETION_INDEX", world_size="RUNSPAN_WORLD_SIZE"),
    _VariableSet(Launcher.ENVIRONMENT, rank="RANK", world_size="WORLD_SIZE"),
)


def resolve_run_id(
    environ: Mapping[str, str],
    context: RankContext,
    given: str | None = None,
    *,
    new_id: Callable[[], str] = ids.uuid7,
    proc: Path = Path("/proc"),
) -> str:
    """Return the run id that every rank of this run comes to by itself.

    It is the given one; ``RUNSPAN_RUN_ID``; the launcher's id of the job; for several processes that torchrun or PMI
    started on one node an id derived from the host's boot and the launcher's process (for torchrun's only one too, so
    that a restart is an attempt of the same run); for a single process a new UUIDv7.

    Args:
        environ: the variables.
        context: the rank context, which knows the launcher.
        given: an id by hand.
        new_id: makes the id of a single process.
        proc: where the kernel shows processes.

    Raises:
        ConfigError: the given id is blank, or several ranks have nothing to agree on; the message says what to set.
    """
    if given is not None:
        if not isinstance(given, str) or not given.strip():
            raise ConfigError(f"run_id={show_value(given)} cannot be used: it takes a string that is not blank")
        return given
    env = EnvReader(environ)
    run_id = env.text("RUNSPAN_RUN_ID") or _job_id(env, context.launcher)
    if run_id is not None:
        return run_id
    if _is_one_launch(env, context):
        run_id = _derived_id(proc, _LAUNCH_MARKERS[context.launcher])
        if run_id is not None:
            return run_id
    if context.world_size == 1:
        return new_id()
    remedy = f"{_SET_RUN_ID}, or give torchrun an --rdzv-id" if context.launcher == Launcher.TORCHRUN else _SET_RUN_ID
    raise ConfigError(
        f"{context.world_size} ranks ({context.launcher}) have no run id that they could agree on: {remedy}"
    )


def _job_id(env: EnvReader, launcher: Launcher) -> str | None:
    """Return the id that the launcher gives its job."""
    if launcher == Launcher.TORCHRUN:
        run_id = env.text("TORCHELASTIC_RUN_ID")
        return None if run_id == "none" else run_id  # torchrun's default for --rdzv-id is that word
    if launcher == Launcher.OPEN_MPI:
        return env.text("PMIX_NAMESPACE")
    if launcher == Launcher.SLURM:
        job, step = env.text("SLURM_JOB_ID"), env.text("SLURM_STEP_ID")
        return f"{job}.{step}" if job and step else None
    return None


#: A variable that a launcher sets for its ranks and that it does not have itself.
_LAUNCH_MARKERS = {Launcher.TORCHRUN: "LOCAL_RANK", Launcher.PMI: "PMI_RANK"}


def _is_one_launch(env: EnvReader, context: RankContext) -> bool:
    """Whether one process on this node started all ranks, so that its identity can stand for the run's."""
    if context.launcher == Launcher.TORCHRUN:
        return env.integer("LOCAL_WORLD_SIZE") == context.world_size
    if context.launcher == Launcher.PMI:
        # One PMI process may be a shell that starts many runs, one after another.
        local_world_size = env.integer("MPI_LOCALNRANKS")
        nodes = env.integer("SLURM_STEP_NUM_NODES") or 1
        on_one_node = nodes == 1 if local_world_size is None else local_world_size == context.world_size
        return on_one_node and context.world_size > 1
    return False


def _derived_id(proc: Path, marker: str) -> str | None:
    """Return an id from boot id, launcher's pid and its start time, None where the kernel does not show them.

    The launcher is the nearest ancestor without the marker: a rank may stand below a wrapper script of its own.
    """
    try:
        boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
        launcher = os.getppid()
        while launcher > 1 and _has_variable(proc, launcher, marker):
            launcher = int(_stat_fields(proc, launcher)[1])
        start_ticks = _stat_fields(proc, launcher)[19]
    except (OSError, ValueError, IndexError):
        return None
    return f"run-{ids.digest('runspan/run/1', boot_id, launcher, start_ticks).hex()[:16]}"


def _stat_fields(proc: Path, pid: int) -> list[str]:
    """Return the fields behind the command's name, which may hold anything: state, parent, …, start time at 19."""
    return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _has_variable(proc: Path, pid: int, name: str) -> bool:
    try:
        environ = (proc / str(pid) / "environ").read_bytes()
    except PermissionError:
        return False
    return any(entry.startswith(f"{name}=".encode()) for entry in environ.split(b"\0"))


@dataclass(frozen=True, slots=True)
class ParentRank:
    """The rank that started this process as a helper, by ``RUNSPAN_PARENT``."""

    rank: int
    world_size: int
    attempt: int

    def owns(self, context: RankContext) -> bool:
        """Whether a process with this context is that rank's child, and not a rank of its own.

        A context given by hand is a rank of its own; one read from the environment is where it differs from the
        parent's, since a child's copy of the environment still names its parent's rank.
        """
        if context.launcher == Launcher.MANUAL:
            return False
        same_rank = (context.rank, context.world_size) == (self.rank, self.world_size)
        return same_rank or context.launcher == Launcher.SINGLE


def format_parent(context: RankContext, attempt: int) -> str:
    """Return ``RUNSPAN_PARENT`` for the children of a rank's attempt: ``<rank>/<world size>/<attempt>``."""
    return f"{context.rank}/{context.world_size}/{attempt}"


def parent_of(environ: Mapping[str, str]) -> ParentRank | None:
    """Return the rank that ``RUNSPAN_PARENT`` names, None without one.

    Raises:
        ConfigError: the value is malformed.
    """
    text = EnvReader(environ).text(_PARENT)
    if text is None:
        return None
    match = _PARENT_VALUE.fullmatch(text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ConfigError(
            f"{_PARENT}={show_value(text)} cannot be used: it takes <rank>/<world size>/<attempt>, as child_environ()"
            " sets it"
        )
    return ParentRank(int(match[1]), int(match[2]), int(match[3]))
