"""Exceptions as text, secrets hidden."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from runspan._plain import text_of

if TYPE_CHECKING:
    from runspan.redaction import Redactor

__all__ = ["describe_error", "format_traceback", "is_cancellation", "is_normal_end"]

_MAX_TRACEBACK_CHARS = 65_536
#: By name, since the frameworks that define them need not be loaded: asyncio's, and trio's and anyio's.
_CANCELLATIONS = frozenset({"KeyboardInterrupt", "CancelledError", "Cancelled"})


def is_normal_end(exception: BaseException) -> bool:
    """Whether it only leads out of a block: ``sys.exit(0)``, or a generator that is closed."""
    if isinstance(exception, SystemExit):
        return exception.code is None or exception.code == 0
    return isinstance(exception, GeneratorExit)


def is_cancellation(error: BaseException) -> bool:
    """Whether somebody asked the program to stop, rather than something going wrong."""
    return not isinstance(error, Exception) and any(base.__name__ in _CANCELLATIONS for base in type(error).__mro__)


def describe_error(error: BaseException, redactor: Redactor) -> str:
    """Return an exception's type and message."""
    text = redactor.redact_text(text_of(error))
    return f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__


def format_traceback(error: BaseException, redactor: Redactor) -> str:
    """Return an exception's traceback, its beginning cut when it is long."""
    text = redactor.redact_text("".join(traceback.format_exception(error)))
    return text if len(text) <= _MAX_TRACEBACK_CHARS else f"…{text[-_MAX_TRACEBACK_CHARS:]}"
