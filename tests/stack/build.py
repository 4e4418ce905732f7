"""Builds the programs of the stack's tests from the Go modules that `programs/` pins, once a pin.

As a script it builds what it is told to, or everything, and prints where the programs are::

    python tests/stack/build.py [jaeger] [prometheus] [promtool] [otelcol] [kafka-broker]
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["PROGRAMS", "MissingToolError", "ProgramBuildError", "cache_folder", "program"]

_PINS = Path(__file__).parent / "programs"
_BUILD = ("build", "-trimpath", "-ldflags=-s -w")
#: Before 1.21 Go does not fetch the toolchain that a module asks for.
_OLDEST_GO = (1, 21)
_TAIL_LINES = 25


class MissingToolError(RuntimeError):
    """What builds the programs is not on this machine."""


class ProgramBuildError(RuntimeError):
    """A program could not be built."""


@dataclass(frozen=True, slots=True)
class _Module:
    """A folder of pins, and how programs come of it.

    Attributes:
        name: the folder below ``programs/``.
        files: what pins the versions.
        programs: what is built.
        build: builds a copy of the folder; takes the copy, the folder for the programs, and Go's environment.
    """

    name: str
    files: tuple[str, ...]
    programs: tuple[str, ...]
    build: Callable[[Path, Path, Mapping[str, str]], None]


def _build_jaeger(pins: Path, out: Path, environ: Mapping[str, str]) -> None:
    _go(pins, environ, *_BUILD, "-o", f"{out}/", "github.com/jaegertracing/jaeger/cmd/jaeger")


def _build_prometheus(pins: Path, out: Path, environ: Mapping[str, str]) -> None:
    # Service discovery is most of the program's size, and the tests name their targets.
    commands = [f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")]
    _go(pins, environ, *_BUILD, "-tags", "remove_all_sd", "-o", f"{out}/", *commands)


def _build_collector(pins: Path, out: Path, environ: Mapping[str, str]) -> None:
    source = pins / "source"
    manifest = pins / "builder.yaml"
    manifest.write_text(manifest.read_text("utf-8").replace("dist:\n", f"dist:\n  output_path: {source}\n", 1), "utf-8")
    _go(pins, environ, "tool", "builder", "--config", str(manifest))
    shutil.move(source / "otelcol", out / "otelcol")


def _build_kafka_broker(pins: Path, out: Path, environ: Mapping[str, str]) -> None:
    _go(pins, environ, *_BUILD, "-o", f"{out}/kafka-broker", ".")


_MODULES = (
    _Module("jaeger", ("go.mod", "go.sum"), ("jaeger",), _build_jaeger),
    _Module("prometheus", ("go.mod", "go.sum"), ("prometheus", "promtool"), _build_prometheus),
    _Module("collector", ("go.mod", "go.sum", "builder.yaml"), ("otelcol",), _build_collector),
    _Module("kafka", ("go.mod", "go.sum", "main.go"), ("kafka-broker",), _build_kafka_broker),
)
_BY_PROGRAM = {program: module for module in _MODULES for program in module.programs}

#: Every program that can be had.
PROGRAMS = tuple(_BY_PROGRAM)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that keeps the built programs: ``$XDG_CACHE_HOME/runspan/stack``, else below ``~/.cache``."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The specification: a relative path is invalid and to be ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "runspan" / "stack"


def program(name: str, environ: Mapping[str, str]) -> Path:
    """Return the path of a program, built now if it was not built before from the same pins.

    Two processes may ask at once: one builds, the other waits for it.

    Args:
        name: one of :data:`PROGRAMS`.
        environ: says where the cache and Go are.

    Raises:
        MissingToolError: it is not built yet, and Go is missing or too old.
        ProgramBuildError: the build failed; the message ends with the end of its output.
    """
    module = _BY_PROGRAM[name]
    pins = _PINS / module.name
    cache = cache_folder(environ)
    folder = cache / f"{module.name}-{_pin_hash(pins, module.files)}"
    if not folder.is_dir():
        go_environ = _go_environ(environ)
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{folder.name}.lock"):
            if not folder.is_dir():
                _build(module, pins, folder, go_environ)
    return folder / name


def _pin_hash(pins: Path, files: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    # How a program is built counts as well as what it is built from.
    for path in (Path(__file__), *(pins / file for file in files)):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _build(module: _Module, pins: Path, folder: Path, environ: Mapping[str, str]) -> None:
    """Build in a temporary folder beside the final one, which then appears whole or not at all."""
    with tempfile.TemporaryDirectory(prefix=f".{module.name}-", dir=folder.parent) as temporary:
        # A copy, for Go writes into the folder that it builds in.
        copy, out = Path(temporary, "pins"), Path(temporary, "out")
        copy.mkdir()
        out.mkdir()
        for file in module.files:
            shutil.copy(pins / file, copy)
        module.build(copy, out, environ)
        for name in module.programs:
            if not os.access(out / name, os.X_OK):
                raise ProgramBuildError(f"the build of {module.name} ended well, but left no program {name}")
        out.rename(folder)


def _go_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that Go is run with.

    Raises:
        MissingToolError: Go is missing or too old.
    """
    advice = f"the stack's programs are built with Go {'.'.join(map(str, _OLDEST_GO))} or newer: install it"
    go = shutil.which("go", path=environ.get("PATH")) or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise MissingToolError(f"there is no `go` on PATH or in /usr/local/go/bin; {advice}")
    done = subprocess.run([go, "env", "GOVERSION"], env=environ, capture_output=True, text=True, check=False)
    version = done.stdout.strip().removeprefix("go")
    major, _, rest = version.partition(".")
    numbers = (major, rest.partition(".")[0])
    if done.returncode != 0 or not all(number.isdecimal() for number in numbers):
        raise MissingToolError(f"{go} does not say its version ({done.stdout}{done.stderr}); {advice}")
    if tuple(map(int, numbers)) < _OLDEST_GO:
        raise MissingToolError(f"{go} is version {version}; {advice}")
    path = f"{Path(go).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    # Go fetches the toolchain that a module asks for, and the builder writes the module that it builds.
    return {**environ, "PATH": path, "GOTOOLCHAIN": "auto", "GOFLAGS": "-mod=mod -buildvcs=false", "GOWORK": "off"}


def _go(folder: Path, environ: Mapping[str, str], *arguments: str) -> None:
    command = ["nice", "-n", "10", "go", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
        raise ProgramBuildError(f"`{' '.join(command[3:])}` in {folder} failed ({done.returncode}):\n{tail}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the system lets go of it when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Build what the command line names, or everything."""
    names = sys.argv[1:] or list(PROGRAMS)
    if unknown := [name for name in names if name not in PROGRAMS]:
        sys.stderr.write(f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}\n")
        return 2
    for name in names:
        began_s = time.monotonic()
        try:
            path = program(name, os.environ)
        except (MissingToolError, ProgramBuildError) as error:
            sys.stderr.write(f"{name}: {error}\n")
            return 1
        sys.stdout.write(f"{path} ({time.monotonic() - began_s:.0f} s)\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
