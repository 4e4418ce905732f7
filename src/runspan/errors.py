"""Every error that runspan raises on purpose.

::

    RunspanError
    ├── ConfigError               a setting, argument or environment variable that cannot be used
    ├── StorageError              the experiment database cannot be opened, read or written
    │   ├── ExperimentNotFoundError
    │   └── RunNotFoundError
    ├── InvalidStateError         a call that the state of the run or row does not allow
    ├── TraceFormatError          a trace file or run directory that breaks the format
    │   └── SchemaVersionError    a schema that this version does not read
    ├── RemoteError               a dashboard over the network that cannot be reached, or refuses
    ├── GateError                 a gate record or its configuration that cannot be used
    └── MissingExtraError         an optional dependency is not installed

Each message names the input, what was expected and what to do. The subclasses also derive from the built-in error that
a caller would expect (``ValueError``, ``LookupError``, ``ImportError``).
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "ExperimentNotFoundError",
    "GateError",
    "InvalidStateError",
    "MissingExtraError",
    "RemoteError",
    "RunNotFoundError",
    "RunspanError",
    "SchemaVersionError",
    "StorageError",
    "TraceFormatError",
]


class RunspanError(Exception):
    """Base of every error that runspan raises on purpose."""


class ConfigError(RunspanError, ValueError):
    """A setting, an argument or an environment variable cannot be used as it is."""


class StorageError(RunspanError):
    """The experiment storage cannot be opened, read or written."""


class ExperimentNotFoundError(StorageError, LookupError):
    """No experiment has this id."""


class RunNotFoundError(StorageError, LookupError):
    """No run has this id."""


class InvalidStateError(RunspanError):
    """The state of the run, or of its row in storage, does not allow the call."""


class TraceFormatError(RunspanError, ValueError):
    """A trace file or a run directory breaks the format.

    Attributes:
        path: the file, when one is to blame.
        line: its one-based line number, when one is to blame.
    """

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None) -> None:
        self.path = path
        self.line = line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(f"{where}{message}")


class SchemaVersionError(TraceFormatError):
    """The trace's schema is unknown to this version of runspan."""


class RemoteError(RunspanError):
    """A dashboard over the network cannot be reached, or refuses."""


class GateError(RunspanError):
    """A gate record or the gate's configuration cannot be used."""


class MissingExtraError(RunspanError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{feature} needs an optional dependency: pip install 'runspan[{extra}]'")
