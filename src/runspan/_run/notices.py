"""What goes wrong while recording: counted, told once, and never raised unless the run is strict."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Notices"]

_MAX_SUBJECTS = 1_000

logger = logging.getLogger("runspan")


class Notices:
    """Counts losses by (signal, reason) and logs each subject once.

    Args:
        run_id: named in each message.
        strict: raise instead of count.
    """

    def __init__(self, run_id: str, *, strict: bool) -> None:
        self._run_id = run_id
        self._strict = strict
        self._told: set[str] = set()
        self._dropped: Counter[tuple[str, str]] = Counter()
        # Reentrant: a signal handler of the program's own may record while the thread it interrupted counts.
        self._lock = threading.RLock()

    def refuse(self, signal: str, reason: str, subject: str, error: Exception) -> None:
        """Count something that the caller asked for and that cannot be recorded; log the first of each subject.

        Raises:
            Exception: ``error``, when the run is strict.
        """
        if self._strict:
            raise error
        self.lose(signal, reason, 1)
        self.warn_once(f"{signal}/{reason}/{subject}", str(error))

    def lose(self, signal: str, reason: str, count: int) -> None:
        """Count what was lost of a signal."""
        with self._lock:
            self._dropped[signal, reason] += count

    def warn_once(self, subject: str, message: str) -> None:
        """Log a warning, the first time for a subject; after a thousand subjects no more."""
        if subject not in self._told and len(self._told) < _MAX_SUBJECTS:
            self._told.add(subject)
            logger.warning("run %s: %s", self._run_id, message)

    def dropped(self) -> Mapping[tuple[str, str], int]:
        """Return what was lost so far, by (signal, reason)."""
        return dict(self._dropped)  # one step, without the lock: a signal handler's work may ask

    def after_fork(self) -> None:
        """Start afresh in a child process: what was counted is the parent's."""
        self._lock = threading.RLock()
        self._dropped = Counter()
