"""A private PostgreSQL server for tests: its own folder, a free loopback port, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PostgresServer", "postgres_or_skip"]

_PASSWORD = "pg-test-password"  # noqa: S105 - of a server that lives for one test session
_START_TIMEOUT_S = 60


class PostgresServer:
    """A running server.

    Args:
        port: where it listens on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, database: str = "postgres", password: str = _PASSWORD) -> str:
        """Return the storage URL of a database."""
        return f"postgresql://runspan:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, *, template_encoding: str = "UTF8") -> str:
        """Create an empty database and return its storage URL."""
        import psycopg  # noqa: PLC0415 - only where PostgreSQL is tested

        name = f"db_{uuid.uuid4().hex}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} ENCODING '{template_encoding}' TEMPLATE template0")
        return self.url(name)


@contextmanager
def postgres_or_skip() -> Iterator[PostgresServer]:
    """Start a server for the length of the block.

    Without the server programs the test is skipped, or fails where ``RUNSPAN_REQUIRE_STACK=1`` says that they must be
    there.
    """
    programs = _programs()
    if programs is None:
        reason = "PostgreSQL's server programs (initdb, pg_ctl) are neither on PATH nor below /usr/lib/postgresql"
        if os.environ.get("RUNSPAN_REQUIRE_STACK") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="runspan-pg-"))
    try:
        user = _hand_over(folder)
        with _running(programs, folder, user) as port:
            yield PostgresServer(port)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    """Return the newest folder that has both programs."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    for folder in [*candidates, *reversed(versions)]:
        if all((folder / program).exists() for program in ("initdb", "pg_ctl", "postgres")):
            return folder
    return None


def _hand_over(folder: Path) -> str | None:
    """Give the folder to the user who runs the server, which refuses to run as root; None: this user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        return name
    pytest.skip("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


@contextmanager
def _running(programs: Path, folder: Path, user: str | None) -> Iterator[int]:
    data, log, secret = folder / "data", folder / "log", folder / "password"
    secret.write_text(_PASSWORD)
    secret.chmod(0o644)
    initdb = ["--auth=scram-sha-256", "--username=runspan", f"--pwfile={secret}", "--no-sync", "--encoding=UTF8"]
    _run(user, str(programs / "initdb"), "-D", str(data), *initdb, "--locale=C")
    port = _free_port()
    options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -c fsync=off -c max_connections=60"
    pg_ctl = str(programs / "pg_ctl")
    _run(user, pg_ctl, "-D", str(data), "-l", str(log), "-w", "-t", str(_START_TIMEOUT_S), "-o", options, "start")
    try:
        yield port
    finally:
        _run(user, pg_ctl, "-D", str(data), "-w", "-m", "immediate", "stop")


def _run(user: str | None, *command: str) -> None:
    """Run a program of the server as its user; its output goes to a file, for a daemon would hold a pipe open."""
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command, cwd="/", stdout=output, stderr=output, user=user, group=user and _group(user), check=False
        )
        if done.returncode != 0:
            output.seek(0)
            raise RuntimeError(f"{command[0]} failed: {output.read().decode(errors='replace')}")


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
