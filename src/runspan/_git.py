"""Questions to git, asked so that no setting, variable or file name can bend the answer.

Whoever asks for a repository gets that one or a reason, never the one around it: variables that point git elsewhere are
dropped where the folder has a ``.git`` of its own, and believed only where they name the folder as their working tree.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import RunspanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Git", "GitError", "TreeEntry"]

#: Long enough to look at every file of a large repository.
_TIMEOUT_S = 120.0
_WORK_TREE = "GIT_WORK_TREE"
#: Variables that tell git where the repository, its index and its objects are.
_LOCATION = (
    *("GIT_DIR", _WORK_TREE, "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE", "GIT_PREFIX"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_SHALLOW_FILE", "GIT_REPLACE_REF_BASE"),
)
#: Variables that change what a path means, or what a difference is.
_MEANING = (
    *("GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS", "GIT_EXTERNAL_DIFF", "GIT_DIFF_OPTS"),
    *("GIT_ATTR_SOURCE", "GIT_TRACE", "GIT_TRACE2"),
)
_FORCED = {
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
    "GIT_GRAFT_FILE": os.devnull,  # parents are those that a commit names
}
#: A file monitor's word, an untracked cache and a shortened comparison of file times can hide changes; a commit graph
#: says again what commits say, and need not be right.
_SETTINGS = (
    *("-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "-c", "core.commitGraph=false"),
    *("-c", "core.checkStat=default", "-c", "core.trustctime=true", "-c", "advice.graftFileDeprecated=false"),
)
_GITLINK = "160000"
_SKIP_WORKTREE = "S"


class GitError(RunspanError):
    """Git gave no answer; the message is the reason."""


class TreeEntry(msgspec.Struct, frozen=True):
    """What stands at a path of a commit.

    Attributes:
        mode: git's file mode, ``100644`` for a plain file.
        oid: the object's id.
    """

    mode: str
    oid: str


class Git:
    """The git of one working tree.

    Attributes:
        top: the working tree's top folder.
    """

    def __init__(self, top: Path, environ: Mapping[str, str], timeout_s: float) -> None:
        self.top = top
        self._environ = dict(environ)
        self._timeout_s = timeout_s

    @classmethod
    def at(cls, top: Path, environ: Mapping[str, str] | None = None, *, timeout_s: float = _TIMEOUT_S) -> Git:
        """Return the git of the working tree whose top is this folder.

        Args:
            top: the folder.
            environ: the environment that git gets; None: the process's.
            timeout_s: how long one question may take, in seconds.

        Raises:
            GitError: it is the top of none, or git refuses or is not there.
        """
        inherited = os.environ if environ is None else environ
        variables = {name: value for name, value in inherited.items() if name not in _MEANING} | _FORCED
        if os.path.lexists(top / ".git"):
            variables = {name: value for name, value in variables.items() if name not in _LOCATION}
        elif "GIT_DIR" in variables and not _names(variables.get(_WORK_TREE, ""), top):
            raise GitError(f"GIT_DIR is set, but GIT_WORK_TREE does not name {top}, which has no .git: unset GIT_DIR")
        git = cls(top, variables, timeout_s)
        found = Path(os.fsdecode(git.run("rev-parse", "--show-toplevel").rstrip(b"\n")))
        if not found.exists() or not found.samefile(top):
            raise GitError(f"{top} is not the top of a git repository: the one around it is {found}")
        return git

    @classmethod
    def around(cls, directory: Path, *, timeout_s: float = _TIMEOUT_S) -> Git:
        """Return the git of the working tree that a folder lies in.

        Raises:
            GitError: it lies in none, or git refuses or is not there.
        """
        for folder in (directory, *directory.parents):
            if os.path.lexists(folder / ".git"):
                return cls.at(folder, timeout_s=timeout_s)
        return cls.at(directory, timeout_s=timeout_s)

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run a git command in the top folder and return what it prints.

        Raises:
            GitError: it fails, takes too long, or there is no git.
        """
        command = ["git", "-C", str(self.top), *_SETTINGS, *arguments]
        try:
            done = subprocess.run(  # noqa: S603 - no shell
                command, env=self._environ, input=stdin, capture_output=True, timeout=self._timeout_s, check=False
            )
        except FileNotFoundError:
            raise GitError("there is no git on PATH") from None
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise GitError(f"git {arguments[0]} could not be run: {error}") from error
        if done.returncode != 0:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())
            raise GitError(said.removeprefix("fatal: ") or f"git {arguments[0]} ended with {done.returncode}")
        return done.stdout

    def text(self, *arguments: str) -> str:
        """Run a git command and return what it prints, as text without the newline at its end.

        Raises:
            GitError: see :meth:`run`.
        """
        return self.run(*arguments).decode("utf-8", "replace").strip()

    def commit(self, revision: str) -> str:
        """Return the full sha of a revision's commit.

        Raises:
            GitError: it is none.
        """
        try:
            return self.text("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        except GitError as error:
            raise GitError(f"{revision!r} is no commit of {self.top}: {error}") from error

    def commit_of_sha(self, sha: str) -> str | None:
        """Return the full sha of the commit that an abbreviated one begins; None: this repository has no such commit.

        A branch or tag that happens to have the sha as its name is not believed.
        """
        try:
            full = self.commit(sha)
        except GitError:
            return None
        return full if full.startswith(sha) else None

    def short_sha(self) -> str:
        """Return the first ten or more digits of the commit that is checked out.

        Raises:
            GitError: there is no commit, or git gives no answer.
        """
        return self.text("rev-parse", "--verify", "--short=10", "HEAD")

    def is_shallow(self) -> bool:
        """Whether commits are missing because the clone was cut off.

        Raises:
            GitError: git gives no answer.
        """
        return self.text("rev-parse", "--is-shallow-repository") == "true"

    def merge_base(self, one: str, other: str) -> str:
        """Return the full sha of the newest commit that two have in common.

        Raises:
            GitError: there is none, or the clone is too shallow to tell.
        """
        try:
            return self.text("merge-base", "--end-of-options", one, other)
        except GitError as error:
            hint = ": the clone is shallow, fetch the full history" if self.is_shallow() else ""
            raise GitError(f"{one} and {other} have no common commit{hint}") from error

    def changed_paths(self, full_sha: str, head: str = "HEAD") -> tuple[str, ...]:
        """Return the paths whose content differs between two commits; a renamed file is its old and its new path.

        Raises:
            GitError: git gives no answer.
        """
        options = ("--no-renames", "--no-ext-diff", "--no-relative", "--ignore-submodules=none", "-z", "--name-only")
        return _split(self.run("diff", *options, full_sha, head, "--"))

    def entry(self, revision: str, path: str) -> TreeEntry | None:
        """Return what a commit has at a path; None: nothing.

        Raises:
            GitError: git gives no answer.
        """
        return self.entries(revision, [path]).get(path)

    def entries(self, revision: str, paths: Sequence[str]) -> dict[str, TreeEntry]:
        """Return what a commit has at each of these paths; paths that it does not have are left out.

        Raises:
            GitError: git gives no answer.
        """
        found = {}
        if "." in paths:
            found["."] = TreeEntry("040000", self.text("rev-parse", "--verify", f"{revision}^{{tree}}"))
        if named := [path for path in paths if path != "."]:
            # -t: a folder is listed also where a path inside it is asked for.
            listed = _tree(self.run("ls-tree", "-z", "-t", "--full-tree", revision, "--", *named))
            found |= {path: listed[path] for path in named if path in listed}
        return found

    def files(self, revision: str, paths: Sequence[str]) -> dict[str, TreeEntry]:
        """Return every file of a commit at or under these paths.

        Raises:
            GitError: git gives no answer.
        """
        named = () if "." in paths else paths
        return _tree(self.run("ls-tree", "-r", "-z", "--full-tree", revision, "--", *named)) if paths else {}

    def blobs(self, oids: Iterable[str]) -> dict[str, bytes]:
        """Return files' contents as they were committed, by their object ids, with one question for all.

        Raises:
            GitError: there is no such file.
        """
        wanted = list(dict.fromkeys(oids))
        if not wanted:
            return {}
        printed = self.run("cat-file", "--batch", stdin="".join(f"{oid}\n" for oid in wanted).encode("ascii"))
        contents, position = {}, 0
        for oid in wanted:
            end = printed.index(b"\n", position)
            _, _, facts = printed[position:end].partition(b" ")
            kind, _, size = facts.partition(b" ")
            if kind != b"blob":
                raise GitError(f"object {oid} is no file: {facts.decode('utf-8', 'replace')}")
            contents[oid] = printed[end + 1 : end + 1 + int(size)]
            position = end + 1 + int(size) + 1
        return contents

    def blob(self, oid: str) -> bytes:
        """Return a file's content as it was committed.

        Raises:
            GitError: there is no such file.
        """
        return self.blobs([oid])[oid]

    def show(self, revision: str, path: str) -> bytes | None:
        """Return a file's content at a revision; None: it has no plain file there.

        Raises:
            GitError: git gives no answer.
        """
        entry = self.entry(revision, path)
        return self.blob(entry.oid) if entry is not None and entry.mode.startswith("100") else None

    def dirty_paths(self, paths: Sequence[str]) -> list[str]:
        """Return the paths at or under these where the working tree is not, or may not be, what is committed.

        Changed, staged, untracked and ignored files; files that git was told not to look at (assume-unchanged,
        skip-worktree); and the same inside submodules, which are dirty as a whole when they are not checked out.

        Raises:
            GitError: git gives no answer.
        """
        if not paths:
            return []
        under = ["--", *paths]
        options = ("--untracked-files=all", "--ignored=traditional", "--ignore-submodules=none", "--no-renames")
        status = self.run("status", "--porcelain=v1", "-z", *options, *under)
        dirty = {line[3:] for line in _split(status)}
        for line in _split(self.run("ls-files", "-z", "-v", "-s", *under)):
            facts, _, path = line.partition("\t")
            tag, mode, _ = facts.split(" ", 2)
            if tag == _SKIP_WORKTREE or tag.islower():
                dirty.add(path)
            if mode == _GITLINK:
                dirty.update(self._dirty_in_submodule(path))
        return sorted(dirty)

    def within(self, path: str) -> Git:
        """Return the git of a submodule.

        Raises:
            GitError: it is not checked out.
        """
        return Git.at(self.top / path, self._environ, timeout_s=self._timeout_s)

    def _dirty_in_submodule(self, path: str) -> Iterable[str]:
        folder = self.top / path
        if not os.path.lexists(folder / ".git"):
            return [path]
        return [f"{path}/{inner}" for inner in self.within(path).dirty_paths(["."])]


def _names(work_tree: str, top: Path) -> bool:
    return os.path.isabs(work_tree) and Path(work_tree).is_dir() and top.samefile(work_tree)  # noqa: PTH117 - a variable


def _split(listing: bytes) -> tuple[str, ...]:
    return tuple(os.fsdecode(name) for name in listing.split(b"\0") if name)


def _tree(listing: bytes) -> dict[str, TreeEntry]:
    entries = {}
    for line in _split(listing):
        facts, _, path = line.partition("\t")
        mode, _, oid = facts.split(" ")
        entries[path] = TreeEntry(mode, oid)
    return entries
