"""``runspan serve``: show runs to displays elsewhere, over gRPC."""

from __future__ import annotations

import json as json_format
import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runspan.cli._options import EXIT_CODES
from runspan.cli._output import say
from runspan.cli._workspace import Workspace
from runspan.directory_frames import allow_many_files
from runspan.errors import ConfigError
from runspan.tracefile.layout import RunDirectory

if TYPE_CHECKING:
    from runspan.rpc import DashboardServer, ServerProcess, ServerTls

__all__ = ["register"]

_TOKEN_VARIABLE = "RUNSPAN_RPC_TOKEN"  # noqa: S105 - a name
#: A subscriber gets so long for its last update.
_DRAIN_S = 5.0
_MAX_TOKEN_BYTES = 4_096


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", short_help="Show runs over gRPC, live or ended.", epilog=EXIT_CODES)(_serve)


def _serve(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR|DB",
            help="A run directory; a root folder, which has experiments.db and runs/; or an experiment database: a file"
            " or postgresql:// URL. Default: the nearest root folder.",
        ),
    ] = None,
    *,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to answer; port 0 takes any free one.")
    ] = "127.0.0.1:7776",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"File with the token that clients must show.  [env: {_TOKEN_VARIABLE}, the token]"
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="The server's certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key, PEM.")] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take no client without a certificate of these authorities, PEM."),
    ] = None,
    max_subscribers: Annotated[int, typer.Option(metavar="N", help="Clients that may subscribe at once.")] = 32,
    json: Annotated[bool, typer.Option("--json", help="Print where it answers as one line of JSON.")] = False,
) -> None:
    """Serve the dashboard of a run directory, of a root folder or of a database, until Ctrl-C or SIGTERM.

    Nothing in them is changed. From beyond this machine it can only be reached with TLS or a token. Health checking
    (grpc.health.v1) and reflection are on.
    """
    # grpc would write to stderr beside the one line that an error is; read when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    allow_many_files()
    with ExitStack() as opened:
        target, trace_dir, what = _target(source, opened)
        server = _started(
            target,
            address,
            token=_token(token_file),
            tls=_tls(tls_cert, tls_key, client_ca),
            max_subscribers=max_subscribers,
            trace_dir=trace_dir,
        )
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        if json:
            say(json_format.dumps({"address": server.address, "source": what}))
        else:
            say(f"serving {what} on {server.address}; Ctrl-C ends it")
        try:
            stop.wait()
        finally:
            server.close(_DRAIN_S)


def _target(source: str | None, opened: ExitStack) -> tuple[Any, Path | None, str]:
    """Return what is served, the folder of its run directories, and how people are told of it."""
    if source is not None and Path(source).expanduser().is_dir():
        folder = Path(source).expanduser().absolute()
        if RunDirectory(folder).trace_files():
            return folder, None, str(folder)
        workspace = Workspace.resolve("none" if not (folder / "experiments.db").is_file() else None, folder)
        if workspace.storage_url is None:
            raise ConfigError(
                f"{source} is neither a run directory (it has no rank-*.jsonl) nor a root folder (it has no"
                " experiments.db): give one of these, or a database"
            )
    else:
        if source not in {None, "none"} and "://" not in source and not Path(source).expanduser().exists():
            raise ConfigError(f"there is no {source}: give a run directory, a root folder or an experiment database")
        workspace = Workspace.resolve(source, None)
    storage = opened.enter_context(workspace.reading())
    if storage is None:
        raise ConfigError(
            f"there is no {workspace.storage_description}: give a run directory, a root folder or a database"
        )
    return storage, workspace.trace_dir, workspace.storage_description


def _started(target: Any, address: str, **options: Any) -> DashboardServer | ServerProcess:
    from runspan.rpc import serve  # noqa: PLC0415 - loads grpc

    return serve(target, address, **options)


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(_TOKEN_VARIABLE) or None
    try:
        with file.open("rb") as stream:
            return stream.read(_MAX_TOKEN_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        raise ConfigError(f"--token-file {file} cannot be read ({error.strerror})") from error


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    from runspan.rpc import ServerTls  # noqa: PLC0415 - the package is loaded by who serves

    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key go together (--client-ca needs both): give both or neither")
    return ServerTls(certificate, key, client_ca)
