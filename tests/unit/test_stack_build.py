from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stack import build

#: Says its version, and "builds" the file that -o names, slowly; each build leaves a line in `builds`.
_GO = """#!/bin/sh
if [ "$1" = env ]; then echo "$GO_SAYS"; exit 0; fi
echo "$1" >> "$BUILDS"
if [ -n "$GO_FAILS" ]; then echo "cannot find module" >&2; exit 3; fi
sleep 0.3
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n' > "$2"
chmod +x "$2"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose `go` is a stand-in: no build of a test takes minutes."""
    tools = tmp_path / "tools"
    tools.mkdir()
    go = tools / "go"
    go.write_text(_GO)
    go.chmod(stat.S_IRWXU)
    return {
        "PATH": f"{tools}{os.pathsep}{os.defpath}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "BUILDS": str(tmp_path / "builds"),
        "GO_SAYS": "go1.26.8",
        "GO_FAILS": "",
    }


def test_a_program_is_built_once(environ: dict[str, str], tmp_path: Path) -> None:
    """The second look finds it in the cache, and needs no Go any more."""
    path = build.program("kafka-broker", environ)
    assert os.access(path, os.X_OK)
    assert path.is_relative_to(tmp_path / "cache" / "runspan" / "stack")
    assert build.program("kafka-broker", {**environ, "PATH": "/nowhere"}) == path
    assert (tmp_path / "builds").read_text() == "build\n"


def test_two_processes_build_once(environ: dict[str, str], tmp_path: Path) -> None:
    """Of two that want a program at once one builds, the other waits, and both get the whole program."""
    command = [sys.executable, build.__file__, "kafka-broker"]
    both = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate(timeout=30)[0].split(" ")[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(said) == 1
    assert (tmp_path / "builds").read_text() == "build\n"


def test_a_failed_build_leaves_nothing_behind(environ: dict[str, str], tmp_path: Path) -> None:
    """The error ends with what the build said, and the next look builds again."""
    with pytest.raises(build.ProgramBuildError, match=r"failed \(3\):\ncannot find module"):
        build.program("kafka-broker", {**environ, "GO_FAILS": "1"})
    assert [path.suffix for path in (tmp_path / "cache" / "runspan" / "stack").iterdir()] == [".lock"]
    assert os.access(build.program("kafka-broker", environ), os.X_OK)


@pytest.mark.parametrize("said", ["go1.19.8", "", "devel"])
def test_go_must_be_new_enough(environ: dict[str, str], said: str) -> None:
    """An old Go, or one that does not say what it is, is refused with what is needed."""
    with pytest.raises(build.MissingToolError, match=r"Go 1\.21 or newer"):
        build.program("kafka-broker", {**environ, "GO_SAYS": said})


def test_the_cache_is_the_users(environ: dict[str, str]) -> None:
    """A relative XDG_CACHE_HOME counts as none, as its specification says."""
    assert build.cache_folder({**environ, "XDG_CACHE_HOME": "cache"}) == Path.home() / ".cache" / "runspan" / "stack"


def test_an_unknown_program_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The script says which programs there are."""
    monkeypatch.setattr(sys, "argv", ["build.py", "jeager"])
    assert build.main() == 2
    assert "jeager; there are jaeger, prometheus" in capsys.readouterr().err
