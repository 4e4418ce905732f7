"""What a benchmark's code targets compiled to, so that a change that alters none of them invalidates no measurement."""

from __future__ import annotations

import msgspec

__all__ = ["TargetClosure", "parse_closure"]


class TargetClosure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One code target as it was built.

    Attributes:
        hash: identity of what it compiled to.
        arch: the architecture it was built for.
        compiler: what built it, with the version.
        flags: the flags it was built with.
    """

    hash: str = msgspec.field()
    arch: str = msgspec.field()
    compiler: str = msgspec.field()
    flags: str | list[str] | None = None


def parse_closure(baked: bytes | str) -> dict[str, TargetClosure]:
    """Read what a build wrote down of its targets; what cannot be read attests nothing, and so excuses no change."""
    try:
        return msgspec.json.decode(baked, type=dict[str, TargetClosure])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
