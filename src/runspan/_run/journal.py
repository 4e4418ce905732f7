"""What a run notes beside metrics, steps and spans: parameters, tags, events, counts, observations, artifacts."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from runspan import semconv
from runspan._plain import text_of
from runspan._run.artifacts import ArtifactStore, StoredArtifact
from runspan._run.failures import describe_error, format_traceback
from runspan._run.spec import checked_params, checked_tags
from runspan._run.values import InvalidValueError, counter_amount, describe, metric_key, metric_step, metric_value
from runspan.alerts import Alert
from runspan.errors import ConfigError
from runspan.records import AlertLevel
from runspan.storage.base import ArtifactRecord
from runspan.tracefile.events import Artifact, Count, Event, Observe, Param, Tag, encode, jsonable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from runspan._run.session import Session
    from runspan.storage.base import ExperimentStorage
    from runspan.tracefile.layout import RunDirectory

    _Write = Callable[[ExperimentStorage, Mapping[str, Any]], None]

__all__ = ["Journal"]

logger = logging.getLogger("runspan")

#: Whether the calling context is inside the log record of an alert.
_is_logging_alert: ContextVar[bool] = ContextVar("runspan_is_logging_alert", default=False)

_LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Journal:
    """Writes the less frequent events of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._params: dict[str, Any] = {}
        self._tags: dict[str, str] = {}
        #: What waits to be stored, by how it is stored: many calls become one transaction.
        self._unstored: dict[_Write, list[dict[str, Any]]] = {}
        self.should_stop = False

    def log_params(self, params: Any) -> None:
        """Record parameters; the last value of a key holds, and a change is told of."""
        session = self._session
        try:
            plain = checked_params(params, session.spec.redactor)
        except ConfigError as error:
            session.notices.refuse("param", "invalid_value", "params", error)
            return
        for key, value in plain.items():
            if key in self._params and self._params[key] != value:
                session.notices.warn_once(f"param/{key}", f"parameter {key!r} was changed; the last value holds")
            self._params[key] = value
            session.writer.write(Param(key, jsonable(value)))
        session.otel.set_run_attributes({f"{semconv.Attr.PARAM_PREFIX}{key}": value for key, value in plain.items()})
        self._store_soon(session.store.log_params, plain)

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Record tags; the last value of a key holds."""
        session = self._session
        try:
            plain = checked_tags(tags, session.spec.redactor)
        except ConfigError as error:
            session.notices.refuse("tag", "invalid_value", "tags", error)
            return
        for key, value in plain.items():
            if self._tags.get(key, value) != value:
                session.notices.warn_once(f"tag/{key}", f"tag {key!r} was changed; the last value holds")
            self._tags[key] = value
            session.writer.write(Tag(key, value))
        session.otel.set_run_attributes({f"{semconv.Attr.TAG_PREFIX}{key}": value for key, value in plain.items()})
        self._store_soon(session.store.set_tags, plain)

    def _store_soon(self, write: _Write, values: dict[str, Any]) -> None:
        """Have parameters or tags stored in the background, in one transaction with those that wait already."""
        session = self._session
        consumer = session.consumer
        if consumer is None:
            return
        with session.writer.lock:
            batch = self._unstored.setdefault(write, [])
            batch.append(values)
            is_first = len(batch) == 1
        session.writer.run_deferred()
        if not is_first:
            return

        def store(storage: ExperimentStorage) -> None:
            with session.writer.lock:
                if self._unstored.get(write) is batch:
                    del self._unstored[write]
            session.writer.run_deferred()
            _write_batch(storage, write, batch)

        consumer.submit(store)

    def event(self, name: str, *, level: str, message: str, attributes: Mapping[str, Any]) -> None:
        """Write an event; a level that is none is told of, and becomes ``info``."""
        session = self._session
        if level not in _LOG_LEVELS:
            error = ConfigError(f"event level {level!r} is not known: use one of {', '.join(_LOG_LEVELS)}")
            session.notices.refuse("event", "invalid_value", "level", error)
            level = "info"
        plain = session.spec.redactor.redact_mapping({text_of(key): value for key, value in attributes.items()})
        session.writer.write(
            Event(
                name=text_of(name),
                level=level,
                message=session.spec.redactor.redact_text(message),
                attributes={key: jsonable(value) for key, value in plain.items()} or None,
                time_unix_nano=session.clock.time_ns(),
            )
        )

    def exception(self, error: BaseException) -> None:
        """Write an exception with its traceback."""
        redactor = self._session.spec.redactor
        attributes = {
            "exception.type": type(error).__qualname__,
            "exception.stacktrace": format_traceback(error, redactor),
        }
        self.event("exception", level="error", message=describe_error(error, redactor), attributes=attributes)

    def alert(self, title: Any, text: Any, level: Any, *, rule: str) -> None:
        """Write an alert to log, file, trace and counter; may ask the training to stop."""
        session = self._session
        config, redactor = session.spec.config, session.spec.redactor
        if not isinstance(level, str) or level not in set(AlertLevel):
            error = ConfigError(f"alert level {describe(level)} is not known: use one of {', '.join(AlertLevel)}")
            session.notices.refuse("alert", "invalid_value", "level", error)
            level = AlertLevel.WARNING
        level = AlertLevel(level)
        alert = Alert(redactor.redact_text(text_of(title)), redactor.redact_text(text_of(text)), level, text_of(rule))
        if not _is_logging_alert.get():  # a logging handler may itself raise an alert for what it is given
            token = _is_logging_alert.set(True)
            try:
                logger.log(_LOG_LEVELS[level], "run %s: %s: %s", session.spec.run_id, alert.title, alert.text)
            finally:
                _is_logging_alert.reset(token)
        self.event("alert", level=level, message=alert.title, attributes={"text": alert.text, "rule": alert.rule})
        session.otel.alert(alert)
        with session.writer.lock:
            alerts = session.state.alerts
            alerts[level, alert.rule] = alerts.get((level, alert.rule), 0) + 1
        session.writer.run_deferred()
        if session.alerting is not None:
            session.alerting.post(alert, session.clock.time_ns())
        if (config.stop_on_error and level in {AlertLevel.ERROR, AlertLevel.CRITICAL}) or (
            config.stop_on_critical and level == AlertLevel.CRITICAL
        ):
            self.should_stop = True

    def count(self, key: str, n: Any) -> None:
        """Add to a counter; a negative or non-finite amount is refused."""
        session = self._session
        try:
            name, amount = metric_key(key), counter_amount(n)
        except InvalidValueError as error:
            subject = describe(key)
            session.notices.refuse("count", "invalid_value", subject, ConfigError(f"count {subject}: {error}"))
            return
        line = encode(Count(key=name, value=amount, time_unix_nano=session.clock.time_ns()))
        with session.writer.lock:
            if session.writer.append(line):
                counts = session.state.counts
                counts[name, ""] = counts.get((name, ""), 0) + amount
        session.writer.run_deferred()

    def observe(self, key: str, value: Any, unit: str) -> None:
        """Add an observation to a distribution."""
        session = self._session
        try:
            name, number = metric_key(key), metric_value(value)
        except InvalidValueError as error:
            subject = describe(key)
            session.notices.refuse("observe", "invalid_value", subject, ConfigError(f"observe {subject}: {error}"))
            return
        time_unix_nano = session.clock.time_ns()
        event = Observe(key=name, value=number, unit=text_of(unit) or None, time_unix_nano=time_unix_nano)
        if session.writer.write(event) and session.otel.exports_metrics:
            session.state.observations.append((name, text_of(unit), number))

    def log_artifact(
        self, name: str, content: str | os.PathLike[str] | bytes, *, step: Any, by_reference: bool
    ) -> str | None:
        """Keep an artifact; return its hash, None when it could not be kept."""
        session = self._session
        directory = session.place.directory
        try:
            checked_step = None if step is None else metric_step(step)
            stored = _store(directory, content, by_reference=by_reference)
        except (OSError, ValueError, TypeError) as error:  # a path with a NUL or a lone surrogate is a ValueError
            subject = describe(name)
            session.notices.refuse(
                "artifact", "unreadable", subject, ConfigError(f"artifact {subject} not kept: {error}")
            )
            return None
        session.writer.write(
            Artifact(text_of(name), stored.hash, stored.bytes, checked_step, stored.path if by_reference else None)
        )
        record = ArtifactRecord(text_of(name), stored.hash, stored.bytes, checked_step, stored.path, by_reference)
        if session.consumer is not None:
            session.consumer.submit(lambda storage: session.store.log_artifact(storage, record))
        return stored.hash


def _write_batch(storage: ExperimentStorage, write: _Write, batch: list[dict[str, Any]]) -> None:
    """Store mappings in one transaction, or each in its own when one of them is refused; keep what failed in the list.

    Raises:
        Exception: what the storage raised; at the second failure in a row it is taken for out of reach.
    """
    try:
        write(storage, {key: value for values in batch for key, value in values.items()})
    except Exception as error:  # noqa: BLE001 - it is raised below, unless another try of each succeeds
        problem: Exception = error
    else:
        return
    if len(batch) > 1:
        has_failed = False
        for values in list(batch):
            try:
                write(storage, values)
            except Exception as error:
                if has_failed:
                    raise
                has_failed, problem = True, error
            else:
                has_failed = False
                batch.remove(values)
    if batch:
        raise problem


def _store(
    directory: RunDirectory | None, content: str | os.PathLike[str] | bytes, *, by_reference: bool
) -> StoredArtifact:
    """Keep or hash an artifact's content."""
    if by_reference:
        if isinstance(content, bytes):
            raise InvalidValueError("bytes cannot be logged by reference: give a path")
        return ArtifactStore.reference(content)
    if directory is None:
        raise InvalidValueError("there is no run directory to keep it in: set trace_dir, or use by_reference")
    return ArtifactStore(directory.artifacts).add(content)
