"""``runspan watch``: a live view of a run, from its run directory or over gRPC."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Self

import typer

from runspan._clock import SystemClock
from runspan.cli._catalog import Catalog
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import format_time, note, open_console, print_json, say
from runspan.cli._watch_view import Page, frame_lines, status_line
from runspan.cli._workspace import Workspace
from runspan.directory_frames import DirectoryFrames, allow_many_files
from runspan.errors import ConfigError, RunspanError
from runspan.records import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from rich.console import Console

    from runspan.frames import Frame, FrameSource

__all__ = ["register"]

_TOKEN_VARIABLE = "RUNSPAN_RPC_TOKEN"  # noqa: S105 - a name
_ADDRESS = re.compile(r"(\[[^\]/]*\]|[^\s/:\[\]]*):\d+")
_LATEST = "latest"
#: Seconds between two looks, where frames are drawn over each other and where each is a line.
_DRAWN_INTERVAL_S = 1.0
_PRINTED_INTERVAL_S = 10.0
#: A page that is no terminal's.
_PLAIN_WIDTH = 100
_TERMINATED = 128 + signal.SIGTERM
#: More signals than come between two looks.
_MAX_WAKES = 65_536


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch", short_help="Watch a run live.", epilog=EXIT_CODES)(_watch)


def _watch(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DIR|HOST:PORT",
            help="A run id, the beginning of one, `latest`, a run directory, or where `runspan serve` answers."
            "  [default: latest]",
            show_default=False,
        ),
    ] = _LATEST,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    json: JsonOption = False,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=3_600,
            help="Seconds between two looks, each of which writes some hundred bytes: more over a slow line.  [default:"
            " 1; 10 where each is printed as a line]",
        ),
    ] = None,
    run: Annotated[
        str, typer.Option("--run", metavar="ID", help="With HOST:PORT: the run's id.  [default: the server's newest]")
    ] = "",
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With HOST:PORT: use TLS, and trust these authorities, PEM."),
    ] = None,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Watch a run live: status, step rate, metrics, step times by rank, usage, alerts.

    The view ends with the run, and its last frame stays; Ctrl-C ends it earlier. Where a terminal cannot be drawn over
    (TERM=dumb, a pipe), a line is printed now and then. --json prints one frame. The exit code is 1 where the run
    failed, was cancelled or was interrupted. RUNSPAN_RPC_TOKEN is the token that a server asks for.
    """
    source = _source(target, run, tls_ca, Workspace.resolve(storage, directory))
    try:
        frame = source.frame()
        console = open_console()
        if json:
            print_json(frame)
        elif once or frame.is_final:
            _print_page(console, frame)
        elif console.is_terminal and not console.is_dumb_terminal:
            frame = _draw(console, source, frame, interval or _DRAWN_INTERVAL_S)
            _print_page(console, frame)
        else:
            frame = _print_lines(source, frame, interval or _PRINTED_INTERVAL_S)
            _print_page(console, frame)
    finally:
        source.close()
    if frame.is_final and frame.status != RunStatus.SUCCESS:
        raise typer.Exit(1)


def _source(target: str, run: str, tls_ca: Path | None, workspace: Workspace) -> FrameSource:
    """Return where the frames of what a user means come from.

    Raises:
        ConfigError: options that do not go together, or a run whose files are not here.
        RunNotFoundError: there is no such run.
        MissingExtraError: gRPC is not installed.
    """
    if _ADDRESS.fullmatch(target) and not Path(target).exists():
        # grpc would write to stderr beside the one line that an error is; read when it is loaded.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from runspan.rpc import ClientTls, RemoteDashboard  # noqa: PLC0415 - the package is loaded by who needs it

        tls = None if tls_ca is None else ClientTls(ca=tls_ca)
        return RemoteDashboard(target, run_id=run, token=os.environ.get(_TOKEN_VARIABLE) or None, tls=tls)
    if run or tls_ca is not None:
        raise ConfigError(f"--run and --tls-ca go with HOST:PORT, not with {target!r}")
    with workspace.reading() as storage:
        found = Catalog(workspace, storage).find(target)
    if found.directory is None:
        raise ConfigError(
            f"run {found.run_id} has no files on this machine: watch it where it runs, or give the HOST:PORT of a"
            " `runspan serve` there"
        )
    allow_many_files()
    return DirectoryFrames(found.directory)


def _print_page(console: Console, frame: Frame) -> None:
    """Print a frame whole, however many lines it takes."""
    width = console.width if console.is_terminal else _PLAIN_WIDTH
    page = Page(width=width, ascii_only=console.options.ascii_only, is_cut=console.is_terminal)
    for line in frame_lines(frame, page, SystemClock.time_ns()):
        console.print(line, soft_wrap=True, end="\n")


def _print_lines(source: FrameSource, frame: Frame, interval_s: float) -> Frame:
    """Print a line whenever something has changed, until the run has ended; return the last frame."""
    said = ""
    while True:
        line = status_line(frame)
        if line != said:
            say(f"{format_time(SystemClock.time_ns())}  {line}")
            said = line
        if frame.is_final:
            return frame
        time.sleep(interval_s)
        newer, problem = _next_frame(source)
        if problem is not None:
            note(problem)
        frame = newer or frame


def _draw(console: Console, source: FrameSource, frame: Frame, interval_s: float) -> Frame:
    """Draw frame over frame until the run has ended; return the last one."""
    from runspan.cli._watch_screen import Screen  # noqa: PLC0415 - loads rich, and termios

    problem = None
    screen = Screen(console)
    with _Signals() as signals, screen:
        while True:
            began_s = time.monotonic()
            size = screen.size()
            page = Page(width=size[0], height=size[1], ascii_only=console.options.ascii_only)
            screen.draw(frame_lines(frame, page, SystemClock.time_ns(), problem), size)
            if frame.is_final:
                return frame
            # A line that takes long for a frame gets fewer of them, instead of older and older ones.
            signals.wait(max(interval_s, 2 * (time.monotonic() - began_s)))
            if signals.is_stop_asked():
                screen.leave()
                signals.stop_process()
                screen.enter()
            newer, problem = _next_frame(source)
            frame = newer or frame


def _next_frame(source: FrameSource) -> tuple[Frame | None, str | None]:
    """Return the next frame, or why there is none: a connection that is lost may come back."""
    try:
        return source.frame(), None
    except RunspanError as error:
        return None, " ".join(str(error).split())


class _Signals:
    """What a full-screen program must do on signals, from entering to leaving.

    A new window size ends the wait; Ctrl-Z gives the terminal back before the process stops; SIGTERM ends the process
    by way of everything that gives the terminal back.
    """

    def __init__(self) -> None:
        # No threading.Event: a handler that sets one, or raises, while the same thread begins to wait for it breaks it.
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._is_stop_asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGWINCH: lambda *_: self._wake(),
            signal.SIGTSTP: self._ask_to_stop,
            signal.SIGTERM: _end,
        }
        for number, handler in handlers.items():
            self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, timeout_s: float) -> None:
        """Wait for so long, or until a signal asks for something."""
        poll = select.poll()  # unlike select(), for any number of open files
        poll.register(self._reader, select.POLLIN)
        if poll.poll(timeout_s * 1_000):
            os.read(self._reader, _MAX_WAKES)

    def is_stop_asked(self) -> bool:
        """Whether Ctrl-Z was pressed since the last call."""
        asked, self._is_stop_asked = self._is_stop_asked, False
        return asked

    def stop_process(self) -> None:
        """Stop as Ctrl-Z would have; returns when the process is continued."""
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, ours)

    def _ask_to_stop(self, *_: object) -> None:
        self._is_stop_asked = True
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # there are thousands in it
            os.write(self._writer, b"\0")


def _end(*_: object) -> NoReturn:
    raise SystemExit(_TERMINATED)
