"""Which steps of a run are captured in depth."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from runspan._env import show_value
from runspan.errors import ConfigError

__all__ = ["CaptureSchedule"]

_TAKES = "wait=10,warmup=1,active=1,repeat=1,slow_factor=3,ranks=16 (any of these, comma-separated)"


@dataclass(frozen=True, slots=True)
class CaptureSchedule:
    """A cycle of steps, repeated: first left alone, then warmed up, then captured; and what counts as slow.

    Attributes:
        wait: steps at the start of each cycle that are left alone.
        warmup: steps after them that are prepared for but not captured.
        active: steps after those that are captured; 0 captures none by schedule.
        repeat: how many cycles there are; 0: as many as the run has steps for.
        slow_factor: a step that takes longer than so many times the median of recent ones, and at least a millisecond
            more, is captured as slow; 0 turns that off.
        ranks: the ranks below this number are captured: 16 is the first 16.

    Raises:
        ConfigError: a count is no whole number from 0 up, or the factor is neither 0 nor a finite number from 1 up.
    """

    wait: int = 10
    warmup: int = 1
    active: int = 1
    repeat: int = 1
    slow_factor: float = 3.0
    ranks: int = 16

    def __post_init__(self) -> None:
        for name in ("wait", "warmup", "active", "repeat", "ranks"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise _unusable(name, value, "a whole number from 0 up")
        factor = self.slow_factor
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not _is_finite(factor):
            raise _unusable("slow_factor", factor, "a finite number")
        if factor != 0 and factor < 1:
            raise _unusable("slow_factor", factor, "0 (off) or a number from 1 up")
        object.__setattr__(self, "slow_factor", float(factor))

    @classmethod
    def parse(cls, text: str) -> CaptureSchedule:
        """Read ``wait=10,warmup=1,…``; what is left out keeps its default.

        Raises:
            ConfigError: an unknown or repeated name, or a value that cannot be used.
        """
        if not isinstance(text, str):
            raise ConfigError(f"capture schedule {show_value(text)} cannot be used: it takes {_TAKES}")
        shown = f"capture schedule {show_value(text)}"
        names = {each.name for each in fields(cls)}
        values: dict[str, float] = {}
        for item in text.split(","):
            name, _, value = (part.strip() for part in item.partition("="))
            if name not in names or name in values:
                problem = "is given twice" if name in values else "is not known"
                raise ConfigError(f"{shown}: {show_value(name)} {problem}; it takes {_TAKES}")
            try:
                values[name] = float(value) if name == "slow_factor" else int(value)
            except ValueError:
                raise ConfigError(f"{shown}: {name}={show_value(value)} is no number; it takes {_TAKES}") from None
        return cls(**values)  # type: ignore[arg-type] # the loop gives every count an int

    def __str__(self) -> str:
        return ",".join(f"{each.name}={_plain(getattr(self, each.name))}" for each in fields(self))


def _unusable(name: str, value: object, takes: str) -> ConfigError:
    return ConfigError(f"capture {name}={show_value(value)} cannot be used: it takes {takes}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
