"""Where runspan keeps what it records: the root folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from runspan._env import EnvReader
from runspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["default_root", "ensure_root", "expand_user"]


def default_root(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Path:
    """Return the folder that everything is kept in, absolute; nothing is created.

    It is ``RUNSPAN_DIR``, else the nearest ``.runspan`` of the working directory or a folder above it, else
    ``.runspan`` at the git root, else ``.runspan`` in the working directory.

    Args:
        environ: the variables; None: the process's.
        cwd: the working directory; None: the process's.

    Raises:
        ConfigError: ``RUNSPAN_DIR`` names something that is not a folder, or the working directory is gone.
    """
    given = EnvReader(os.environ if environ is None else environ).text("RUNSPAN_DIR")
    given_path = None if given is None else expand_user(given, "RUNSPAN_DIR")
    if given_path is not None and given_path.is_absolute():
        base = given_path
    else:
        base = _working_directory() if cwd is None else cwd
    if given_path is not None:
        root = base / given_path
        if os.path.exists(root) and not os.path.isdir(root):  # noqa: PTH110, PTH112 - Path raises for an overlong name
            raise ConfigError(
                f"RUNSPAN_DIR={given!r} is not a folder: it takes a folder, which is created where it is missing"
            )
        return root
    ancestors = (base, *base.parents)
    for ancestor in ancestors:
        if os.path.isdir(ancestor / ".runspan"):  # noqa: PTH112 - Path.is_dir raises where a folder cannot be searched
            return ancestor / ".runspan"
    # A worktree's or submodule's .git is a file.
    git_root = next((folder for folder in ancestors if os.path.lexists(folder / ".git")), base)
    return git_root / ".runspan"


def ensure_root(path: Path) -> Path:
    """Create the root folder, with a ``.gitignore`` that keeps it out of version control, and return it.

    A ``.gitignore`` that is already there stays, and none is written into the top of a working tree.

    Raises:
        ConfigError: the folder cannot be created or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(path / ".git"):
            with (path / ".gitignore").open("x") as ignore:
                ignore.write("*\n")
    except FileExistsError:
        if not path.is_dir():
            raise ConfigError(f"{path} is not a folder: set RUNSPAN_DIR to one that can be written to") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written to ({error.strerror}): set RUNSPAN_DIR to a folder that can"
        ) from error
    return path


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"the working directory cannot be found ({error.strerror}): change to one that exists"
        ) from error


def expand_user(path: str | Path, setting: str | None = None) -> Path:
    """Return a path with the home folder in the place of ``~``.

    Args:
        path: the path.
        setting: the setting or variable whose value it is.

    Raises:
        ConfigError: there is no such user, or this one has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        named = path if setting is None else f"{setting}={path}"
        raise ConfigError(
            f"{named} cannot be used, there is no such home folder: write the whole path, or ./~ for a name with ~"
        ) from None
