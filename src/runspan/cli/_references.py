"""What a user's reference may name beside a run: a file or a folder."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["named_file", "named_folder", "named_path"]


def named_file(reference: str) -> Path | None:
    """Return the file that a reference is the path of; None where it is none, as a run's id."""
    path = named_path(reference)
    return path if _is(path.is_file) else None


def named_folder(reference: str) -> Path | None:
    """Return the folder that a reference is the path of; None where it is none, as a run's id."""
    path = named_path(reference)
    return path if reference and _is(path.is_dir) else None


def named_path(reference: str) -> Path:
    """Return a reference as a path, ``~`` being the home folder unless it belongs to the name, as in a run's id."""
    try:
        return Path(reference).expanduser()
    except RuntimeError:  # there is no such user
        return Path(reference)


def _is(question: Callable[[], bool]) -> bool:
    """Ask a path what it is: nothing, where no file can have its name; a run's id may be longer than that."""
    try:
        return question()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise
