"""What the run was started with: program, packages and git state, secrets hidden."""

from __future__ import annotations

import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan._git import Git, GitError
from runspan.tracefile.events import Environment, GitInfo

if TYPE_CHECKING:
    from runspan.redaction import Redactor

__all__ = ["GitState", "collect_environment", "default_entrypoint", "git_state", "script_stem"]

_MAX_DIFF_BYTES = 1 << 20
_GIT_TIMEOUT_S = 10.0


class GitState(msgspec.Struct, frozen=True):
    """The commit, branch, uncommitted changes and remote of the working tree; None where git does not tell."""

    sha: str | None = None
    branch: str | None = None
    diff: str | None = None
    remote_url: str | None = None


def git_state(redactor: Redactor) -> GitState:
    """Ask git about the working directory.

    Without git, outside a repository, or where git refuses (another owner's repository), everything is None: training
    goes on without. Secrets in the remote and in the diff are hidden, and the diff is cut at 1 MiB.
    """
    try:
        git = Git.around(Path.cwd(), timeout_s=_GIT_TIMEOUT_S)
        sha = git.commit("HEAD")
    except (GitError, OSError):  # OSError: the working directory was removed
        return GitState()
    branch = _answer(git, "symbolic-ref", "--short", "-q", "HEAD")
    remote = _answer(git, "config", "--get", "remote.origin.url")
    diff = _answer(git, "diff", "--no-ext-diff", "--no-color", "HEAD")
    return GitState(
        sha=sha,
        branch=branch or None,
        diff=redactor.redact_text(_cut(diff)) if diff else None,
        remote_url=redactor.redact_url(remote) if remote else None,
    )


def collect_environment(git: GitState, redactor: Redactor) -> Environment:
    """Describe this process."""
    return Environment(
        argv=redactor.redact_argv(sys.argv),
        cwd=_working_directory(),
        python=platform.python_version(),
        packages=_packages(),
        git=GitInfo(git.sha, git.branch, git.diff) if git.sha else None,
    )


def script_stem() -> str:
    """Return what the user started: the script's stem, the module of ``-m``, or ``python``."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        name: str = spec.name
        return name.removesuffix(".__main__")
    script = getattr(main, "__file__", None)
    return Path(script).stem if script else "python"


def default_entrypoint() -> str:
    """Return ``<script stem or module>:__main__``."""
    return f"{script_stem()}:__main__"


def _packages() -> dict[str, str]:
    """Return the installed distributions' versions by name; a broken installation is left out."""
    packages = {}
    for distribution in metadata.distributions():
        with suppress(Exception):  # foreign files, read by a parser that raises what it likes
            fields = distribution.metadata
            packages[str(fields["Name"])] = str(fields["Version"])
    packages.pop("None", None)  # one without a name
    return dict(sorted(packages.items(), key=lambda item: item[0].lower()))


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""


def _answer(git: Git, *arguments: str) -> str | None:
    """Ask git; None when there is no answer."""
    try:
        return git.text(*arguments)
    except GitError:
        return None


def _cut(diff: str) -> str:
    data = diff.encode("utf-8", "replace")
    if len(data) <= _MAX_DIFF_BYTES:
        return diff
    return f"{data[:_MAX_DIFF_BYTES].decode('utf-8', 'ignore')}\n…[cut from {len(data)} bytes]"
