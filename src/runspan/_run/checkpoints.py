"""A checkpoint's span, with its path and size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runspan._run.values import describe
from runspan.errors import ConfigError
from runspan.semconv import Attr, SpanName

if TYPE_CHECKING:
    from types import TracebackType

    from opentelemetry import trace

    from runspan._run.session import Session

__all__ = ["CheckpointScope"]


class CheckpointScope:
    """Times the writing of a checkpoint, and reads its size at the end."""

    def __init__(self, session: Session, path: str | os.PathLike[str] | None) -> None:
        self._session = session
        self._path = None if path is None else self._checked(path)
        attributes = {} if self._path is None else {Attr.CHECKPOINT_PATH: str(self._path)}
        self._scope = session.otel.long_scope(SpanName.CHECKPOINT, attributes)
        self._began_ns = 0

    def __enter__(self) -> trace.Span:
        self._began_ns = self._session.clock.monotonic_ns()
        self._span = self._scope.__enter__()
        return self._span

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state, clock = self._session.state, self._session.clock
        if exception is None:
            size = None if self._path is None else _size_of(self._path)
            if size is not None:
                self._span.set_attribute(Attr.CHECKPOINT_BYTES, size)
            state.checkpoint_last_time_unix_nano = clock.time_ns()
            if self._session.otel.exports_metrics:
                state.checkpoint_durations.append(clock.monotonic_ns() - self._began_ns)
        self._scope.__exit__(exception_type, exception, traceback)

    def _checked(self, path: Any) -> Path | None:
        """Return a path; what is none is told of, and the checkpoint is timed without it."""
        try:
            return Path(os.fsdecode(path))
        except Exception:  # noqa: BLE001 - anything may have been given, and its __fspath__ may raise anything
            error = ConfigError(f"checkpoint path {describe(path)} cannot be used: it takes a path")
            self._session.notices.refuse("checkpoint", "invalid_value", "path", error)
            return None


def _size_of(path: Path) -> int | None:
    """Return the bytes of a file or of a directory's files, None when it cannot be read."""
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return path.stat().st_size
    except (OSError, ValueError):  # a path with a NUL or a lone surrogate is a ValueError
        return None
