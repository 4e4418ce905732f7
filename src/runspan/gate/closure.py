"""What a benchmark's code targets compiled to, so that a change that alters none of them invalidates no measurement."""

from __future__ import annotations

import ast
import hashlib
import platform
import shlex
import subprocess
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import GateError
from runspan.gate._paths import normalized
from runspan.gate._uncommitted import uncommitted_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runspan._git import Git
    from runspan.gate.baseline import Command, GateConfig, Target

__all__ = ["TREE", "TargetClosure", "attest", "hash_target", "parse_closure", "tree_attestations"]

#: How the attestation of a path's git object is named: this, and the path.
TREE = "tree:"
_ANY_ARCH = "any"
_COMMAND_TIMEOUT_S = 600.0


class TargetClosure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One code target as it was built.

    Attributes:
        hash: identity of what it compiled to.
        arch: the architecture it was built for.
        compiler: what built it, with the version.
        flags: the flags it was built with.
    """

    hash: str = msgspec.field()
    arch: str = msgspec.field()
    compiler: str = msgspec.field()
    flags: str | list[str] | None = None


def parse_closure(baked: bytes | str) -> dict[str, TargetClosure]:
    """Read what a build wrote down of its targets; what cannot be read attests nothing, and so excuses no change."""
    try:
        return msgspec.json.decode(baked, type=dict[str, TargetClosure])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}


def attest(git: Git, config: GateConfig) -> dict[str, TargetClosure]:
    """Return what a record says of the commit that is checked out: each code target, and each path of the rules.

    Raises:
        GateError: a target cannot be hashed.
        GitError: git gives no answer.
    """
    targets = {name: hash_target(git, target) for name, target in config.targets.items()}
    return targets | tree_attestations(git, [*config.perf_paths, *config.boundary_paths])


def tree_attestations(git: Git, paths: Sequence[str]) -> dict[str, TargetClosure]:
    """Return the id of the git object that HEAD has at each path; a path that it does not have is left out.

    Raises:
        GitError: git gives no answer.
    """
    entries = git.entries("HEAD", list(dict.fromkeys(map(normalized, paths))))
    return {
        f"{TREE}{path}": TargetClosure(hash=entry.oid, arch=_ANY_ARCH, compiler="git")
        for path, entry in entries.items()
    }


def hash_target(git: Git, target: Target) -> TargetClosure:
    """Say what a code target compiles to at HEAD.

    Files count as they were committed, so that the line ends of a checkout do not. A command looks at the working tree,
    which must be HEAD's for it.

    Raises:
        GateError: a file is no Python, or the command fails, says nothing, or would look at uncommitted files.
        GitError: git gives no answer.
    """
    paths = [normalized(path) for path in target.paths]
    if not isinstance(target.hash, str):
        return _command_closure(git, target.hash, paths)
    files = git.files("HEAD", paths)
    if not files:
        raise GateError(
            f"HEAD has no file at {', '.join(map(repr, paths)) or 'no path'}: expected the code of a target"
        )
    if target.hash == "files":
        identities = {path: entry.oid for path, entry in files.items()}
        return TargetClosure(hash=_digest(identities), arch=_ANY_ARCH, compiler="files")
    code = {path: entry for path, entry in files.items() if path.endswith(".py") and entry.mode.startswith("100")}
    sources = git.blobs(entry.oid for entry in code.values())
    identities = {path: f"{entry.mode} {entry.oid}" for path, entry in files.items()}
    identities |= {path: _syntax_identity(path, sources[entry.oid]) for path, entry in code.items()}
    # How a tree is written down differs from one version of Python to the next.
    compiler = f"python-ast-{'.'.join(platform.python_version_tuple()[:2])}"
    return TargetClosure(hash=_digest(identities), arch=_ANY_ARCH, compiler=compiler)


def _digest(identities: Mapping[str, str]) -> str:
    lines = (
        f"{path}\0{identity}\0".encode("utf-8", "surrogateescape") for path, identity in sorted(identities.items())
    )
    return hashlib.sha256(b"".join(lines)).hexdigest()


def _syntax_identity(path: str, source: bytes) -> str:
    try:
        return ast.dump(ast.parse(source, path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise GateError(f"{path} is no Python that this version reads: {error}") from error


def _command_closure(git: Git, command: Command, paths: Sequence[str]) -> TargetClosure:
    shown = shlex.join(command.command)
    if dirty := uncommitted_paths(git, paths):
        raise GateError(f"`{shown}` would look at files that are not as committed: {', '.join(dirty)}")
    try:
        done = subprocess.run(  # noqa: S603 - the repository's own command, no shell
            command.command, cwd=git.top, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        raise GateError(f"`{shown}` could not be run: {error}") from error
    if done.returncode != 0 or not done.stdout.strip():
        said = " ".join(done.stderr.decode("utf-8", "replace").split())
        raise GateError(f"`{shown}` ended with {done.returncode}, its output {len(done.stdout)} bytes: {said}")
    return TargetClosure(hash=hashlib.sha256(done.stdout).hexdigest(), arch=platform.machine(), compiler=shown)
