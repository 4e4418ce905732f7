"""How a process's open Runs meet its ends: exit, SIGTERM, fork.

The one object of this module, :data:`open_runs`, is the stack of this process's open Runs. It registers its hooks with
the interpreter when the first Run opens.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from runspan.records import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    Handler = Callable[[int, FrameType | None], Any] | int | None

__all__ = ["OpenRun", "OpenRuns", "innermost", "open_runs"]

innermost: ContextVar[OpenRun | None] = ContextVar("runspan_run", default=None)


class OpenRun(Protocol):
    """What the hooks ask of a Run."""

    def is_finished(self) -> bool:
        """Whether it has ended."""

    def is_inside(self) -> bool:
        """Whether the calling thread was interrupted inside one of its recording calls, or inside its finish."""

    def defer(self, work: Callable[[], None]) -> None:
        """Have the interrupted call do this at its end."""

    def note_signal(self, name: str) -> None:
        """Remember that the process was asked to end, and flush."""

    def finish_bounded(self, status: RunStatus, reason: str) -> None:
        """End the run on another thread, waiting no longer than its configuration allows."""

    def finish_implicitly(
        self, status: RunStatus, reason: str | None = None, error: BaseException | None = None
    ) -> None:
        """End the run as the program's course has it, unless a signal has asked the process to end."""

    def after_fork_in_child(self) -> None:
        """Become the run of a child process: a file of its own, no threads, no export."""


class OpenRuns:
    """The open Runs of this process, innermost last."""

    def __init__(self) -> None:
        self._runs: list[OpenRun] = []
        self._hooked = False
        self._unnamed = 0
        self._handler: _TerminationHandler | None = None
        self._ending = False
        self._exception_before: BaseException | None = None

    def current(self) -> OpenRun | None:
        """Return the context's Run, else the process's innermost open one."""
        run = innermost.get()
        if run is not None and not run.is_finished():
            return run
        return next((run for run in reversed(self._runs) if not run.is_finished()), None)

    def count_unnamed(self) -> int:
        """Return how many Runs of this process took an id that was not given by hand, this one included."""
        self._unnamed += 1
        return self._unnamed

    def add(self, run: OpenRun) -> None:
        """Register a Run that has opened."""
        if not self._hooked:
            self._hooked = True
            atexit.register(self._at_exit)
            os.register_at_fork(after_in_child=self._after_fork_in_child)
        if not self._runs:
            self._exception_before = _last_exception()
        self._runs.append(run)
        self._install_handler()

    def remove(self, run: OpenRun) -> None:
        """Forget a Run that has ended."""
        if run in self._runs:
            self._runs.remove(run)
        if not self._runs:
            self._restore_handler()

    def end_by_signal(
        self, number: int, frame: FrameType | None, handler: _TerminationHandler, *, is_first: bool
    ) -> None:
        """Let the earlier handler decide; where there was none, end the Runs and then the process as it would have.

        Args:
            number: the signal.
            frame: where the main thread was.
            handler: ours.
            is_first: whether the kernel's signal came to ours, and not to a later one that calls ours.
        """
        name = signal.Signals(number).name
        if handler.earlier == signal.SIG_IGN:
            return
        # A later handler that calls ours has decided already, and the kernel spares process 1.
        if callable(handler.earlier) or not is_first or os.getpid() == 1:
            for run in list(self._runs) if handler is self._handler else ():
                run.note_signal(name)
            if callable(handler.earlier):
                handler.earlier(number, frame)
            return
        if self._ending:
            return
        self._ending = True
        for run in reversed(self._runs):
            run.finish_bounded(RunStatus.CANCELLED, name)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def interrupted(self) -> OpenRun | None:
        """Return the Run that the calling thread is inside a recording call of, or is ending."""
        return next((run for run in self._runs if run.is_inside()), None)

    def _install_handler(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        earlier = signal.getsignal(signal.SIGTERM)
        # None is a handler of C code, which could not be put back.
        if earlier is None or earlier is self._handler:
            return
        self._handler = _TerminationHandler(self, earlier)
        signal.signal(signal.SIGTERM, self._handler)

    def _restore_handler(self) -> None:
        handler = self._handler
        if handler is None or threading.current_thread() is not threading.main_thread():
            return
        installed: object = signal.getsignal(signal.SIGTERM)
        if installed is handler:
            signal.signal(signal.SIGTERM, handler.earlier)

    def _at_exit(self) -> None:
        error = _last_exception()
        if error is self._exception_before:
            error = None
        for run in list(reversed(self._runs)):
            if isinstance(error, KeyboardInterrupt):
                run.finish_implicitly(RunStatus.CANCELLED, "KeyboardInterrupt")
            elif error is not None:
                run.finish_implicitly(RunStatus.FAILED, error=error)
            else:
                run.finish_implicitly(RunStatus.SUCCESS, "exit")

    def _after_fork_in_child(self) -> None:
        # A handler in Python waits for the interpreter: a child that blocks in C code just then would never die of it
        # (a pool's worker at its queue). A child's file needs no ending, so that SIGTERM may do what it did before.
        self._restore_handler()
        self._ending = False
        for run in self._runs:
            run.after_fork_in_child()


class _TerminationHandler:
    """What Runs put in place of a process's SIGTERM handler, with the one that was there before."""

    def __init__(self, runs: OpenRuns, earlier: Handler) -> None:
        self._runs = runs
        self.earlier = earlier

    def __call__(self, number: int, frame: FrameType | None) -> None:
        installed: object = signal.getsignal(number)
        end = partial(self._runs.end_by_signal, number, frame, self, is_first=installed is self)
        inside = self._runs.interrupted()
        if inside is None:
            end()
        else:
            inside.defer(end)


def _last_exception() -> BaseException | None:
    """Return the exception that ended the main thread, as the interpreter has noted it."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


open_runs = OpenRuns()
