"""Real git repositories for tests, made by git itself and untouched by the settings of whoever runs them."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Repository:
    """A working tree.

    Args:
        top: its top folder.
    """

    def __init__(self, top: Path) -> None:
        self.top = top

    @classmethod
    def create(cls, top: Path) -> Repository:
        """Make an empty repository with the branch ``main``."""
        top.mkdir(parents=True, exist_ok=True)
        repository = cls(top)
        repository.git("init", "-q", "-b", "main")
        return repository

    def git(self, *arguments: str) -> str:
        """Run git in the working tree and return what it prints."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(
            ["git", "-C", self.top, *arguments], env=inherited | _IDENTITY, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def write(self, files: Mapping[str, str | bytes]) -> None:
        """Write files by their paths."""
        for path, content in files.items():
            file = self.top / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(self, files: Mapping[str, str | bytes] | None = None) -> str:
        """Write files, commit everything there is, and return the full sha."""
        self.write(files or {})
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "change")
        return self.head

    @property
    def head(self) -> str:
        """The full sha of what is checked out."""
        return self.git("rev-parse", "HEAD")
