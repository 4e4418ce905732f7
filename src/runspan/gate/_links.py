"""Symbolic links among the performance paths: what they lead to is measured as well."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING

import msgspec

from runspan.gate._paths import is_under

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        targets = git.blobs(links.values())
        pending = []
        for path, oid in links.items():
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), os.fsdecode(targets[oid])))
            if target.startswith("/") or not _OUTSIDE.isdisjoint(target.split("/")):
                outside.append(path)
                continue
            for step in _steps(git, revision, target):
                if not is_under(step, reached):
                    reached.append(step)
                    pending.append(step)
    return Links(reached[len(paths) :], outside)


def _steps(git: Git, revision: str, target: str) -> list[str]:
    """Return a target, or what it is reached through: a folder that is itself a link, or a submodule."""
    folders = [target]
    while (parent := posixpath.dirname(folders[-1])) not in ("", "."):
        folders.append(parent)
    entries = git.entries(revision, folders)
    through = [folder for folder in folders if folder in entries and entries[folder].mode in (_LINK, _SUBMODULE)]
    return through or [target]
