"""State that must not cross a fork: locks and database connections."""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ForkGate", "PerProcess"]

T = TypeVar("T")


class PerProcess(Generic[T]):
    """One value a process: a forked child makes its own instead of using the parent's.

    A lock may be held by another thread at the moment of the fork, and a database connection used by two processes
    corrupts what it talks to. The parent's value is kept, unused: releasing it would close the connection under it.

    Args:
        make: makes a value; it is called in each process that asks for one, and must not need what the value protects.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}

    def get(self) -> T:
        """Return this process's value."""
        pid = os.getpid()
        value = self._values.get(pid)
        # setdefault is atomic: of two threads that get here together both return the same value.
        return self._values.setdefault(pid, self._make()) if value is None else value


class ForkGate:
    """Lets this process fork only while no thread is inside, and runs a function right before.

    SQLite keeps a table of the locks that its process holds. A child inherits the table but not the locks, so of a
    connection that is open while its process forks nothing may be left: neither in use nor idle.

    Args:
        close: closes what must not be open during a fork.
        timeout_s: how long a fork waits for the threads inside. After that it happens nevertheless, and the child is
            not :attr:`safe`.
    """

    def __init__(self, close: Callable[[], None], timeout_s: float) -> None:
        self._close = close
        self._timeout_s = timeout_s
        self.safe = True
        self._reset()
        # Hooks cannot be taken back: they must not keep the gate and its connections alive.
        gate = weakref.ref(self)
        os.register_at_fork(
            before=lambda: _if_alive(gate, ForkGate._before),
            after_in_parent=lambda: _if_alive(gate, ForkGate._after_in_parent),
            after_in_child=lambda: _if_alive(gate, ForkGate._after_in_child),
        )

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Keep the process from forking inside this block; waits while one is about to."""
        thread = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._threads[thread] += 1
        try:
            yield
        finally:
            with self._changed:
                self._threads[thread] -= 1
                self._threads += Counter()  # drops threads that have left
                self._changed.notify_all()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._threads: Counter[int] = Counter()
        self._forking = False
        self._closed = True

    def _before(self) -> None:
        self._changed.acquire()
        self._forking = True
        # A thread that forks while it is inside, from a signal handler, would wait for itself.
        if threading.get_ident() not in self._threads:
            self._changed.wait_for(lambda: not self._threads, self._timeout_s)
        self._closed = not self._threads
        if self._closed:
            self._close()

    def _after_in_parent(self) -> None:
        self._forking = False
        self._changed.notify_all()
        self._changed.release()

    def _after_in_child(self) -> None:
        self.safe = self.safe and self._closed
        self._reset()


def _if_alive(gate: weakref.ref[ForkGate], hook: Callable[[ForkGate], None]) -> None:
    alive = gate()
    if alive is not None:
        hook(alive)
