"""Symbolic links among the performance paths: what they lead to is measured as well."""

from __future__ import annotations

import os
import posixpath
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from runspan.gate._paths import is_under

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from runspan._git import Git

__all__ = ["Links", "follow_links"]

_LINK = "120000"
_SUBMODULE = "160000"
#: No commit holds what lies above its repository, or in the folder of the repository itself.
_OUTSIDE = frozenset({"..", ".git"})


class Links(msgspec.Struct, frozen=True):
    """Where a commit's links lead.

    Attributes:
        inside: paths of the repository that are reached, and are not below the paths that were asked about.
        outside: the links that lead out of the repository, to what no commit holds.
    """

    inside: list[str]
    outside: list[str]


def follow_links(git: Git, revision: str, paths: Sequence[str], without: Sequence[str]) -> Links:
    """Follow every link that a commit has at or below some paths, and those that are reached in turn.

    Args:
        git: the repository.
        revision: the commit.
        paths: normalized paths.
        without: normalized paths whose links are not followed.

    Raises:
        GitError: git gives no answer.
    """
    reached, outside = list(paths), []
    pending = list(paths)
    while pending:
        files = git.files(revision, pending)
        links = {
            path: entry.oid for path, entry in files.items() if entry.mode == _LINK and not is_under(path, without)
        }
        contents = git.blobs(links.values())
        targets = {path: _target(path, os.fsdecode(contents[oid])) for path, oid in links.items()}
        outside += [path for path, target in targets.items() if target is None]
        new = {target for target in targets.values() if target is not None and not is_under(target, reached)}
        pending = sorted(step for step in _steps(git, revision, new) if not is_under(step, reached))
        reached += pending
    return Links(reached[len(paths) :], outside)


def _target(link: str, text: str) -> str | None:
    """Return the path that a link leads to; None: no commit of this repository can hold it."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(link), text))
    return None if target.startswith("/") or not _OUTSIDE.isdisjoint(target.split("/")) else target


def _steps(git: Git, revision: str, targets: Collection[str]) -> set[str]:
    """Return targets, or what they are reached through: folders that are links themselves, and submodules."""
    folders = {target: [target, *map(str, PurePosixPath(target).parents[:-1])] for target in targets}
    entries = git.entries(revision, sorted({folder for above in folders.values() for folder in above}))
    steps = set()
    for target, above in folders.items():
        through = {folder for folder in above if folder in entries and entries[folder].mode in (_LINK, _SUBMODULE)}
        steps |= through or {target}
    return steps
