"""Methods that run in one transaction: written with the connection as their first argument, called without it."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from runspan.storage._database import Database

__all__ = ["Transactional", "reads", "writes"]


class Transactional(Protocol):
    """What has a database."""

    _database: Database


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Transactional)
C = TypeVar("C", bound="Callable[..., Any]")


def reads(method: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Run a method in a reading transaction; its first argument becomes the connection."""

    def in_transaction(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._database.read(lambda connection: method(self, connection, *args, **kwargs))

    return _described_as(method, in_transaction)


def writes(method: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Run a method in a writing transaction, again if it lost against another; its first argument is the connection."""

    def in_transaction(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._database.write(lambda connection: method(self, connection, *args, **kwargs))

    return _described_as(method, in_transaction)


def _described_as(method: Callable[..., Any], wrapper: C) -> C:
    """Give the wrapper the method's name, docstring and signature, without the connection that callers do not pass."""
    functools.update_wrapper(wrapper, method)
    signature = inspect.signature(method)
    seen = [parameter for name, parameter in signature.parameters.items() if name != "connection"]
    wrapper.__signature__ = signature.replace(parameters=seen)  # type: ignore[attr-defined]
    return wrapper
