"""A git repository with a benchmark in it, for the tests of gate runs."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from runspan.gate.hardware_probe import HardwareProbe

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HARDWARE_KEY", "GateRepository"]

HARDWARE_KEY = "cpu-intel-xeon-platinum-8480"
_CONFIG = """\
perf_paths = ["src", "speed.py"]
test_paths = ["src/tests"]
perf_controls = { OMP_NUM_THREADS = "1" }
"""


class GateRepository:
    """A repository whose benchmark is a file ``speed.py``, and a machine with a processor of a made-up model.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.top = folder / "repository"
        self._machine = folder / "machine"
        self.top.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.write("src/model.py", "DEPTH = 1\n")
        self.write(".benchmarks/config.toml", _CONFIG)
        (self._machine / "proc").mkdir(parents=True)
        (self._machine / "proc/cpuinfo").write_text("model name : Intel(R) Xeon(R) Platinum 8480\n")

    def probe(self) -> HardwareProbe:
        """Return what reads the made-up machine."""
        return HardwareProbe(visible_devices="", proc=self._machine / "proc", sys=self._machine / "sys")

    def write(self, path: str, text: str) -> Path:
        """Write a file of the working tree."""
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def declare(
        self, declaration: str, entry: str = "", *, benchmark_id: str = "speed", key: str = HARDWARE_KEY
    ) -> None:
        """Write ``bounds.toml``: a benchmark's declaration, and the lines of its entry; empty: it has none."""
        tables = f"[benchmarks.{benchmark_id}]\n{declaration}\n"
        if entry:
            tables += f"[hardware.{key}.default]\n[hardware.{key}.default.benchmarks.{benchmark_id}]\n{entry}\n"
        self.write(".benchmarks/bounds.toml", tables)

    def commit(self, message: str = "state") -> str:
        """Commit everything and return the commit's full sha."""
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        """Run git in the working tree and return what it prints."""
        identity = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(
            ["git", "-C", str(self.top), *arguments],
            env={**environ, **identity},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()
