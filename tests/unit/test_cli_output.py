from __future__ import annotations

import json
import math
import shlex
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.cli._output import (
    clean,
    command_line,
    counted,
    format_age,
    format_bytes,
    format_duration,
    format_number,
    plain,
    sparkline,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_a_sparkline_rises_with_its_values() -> None:
    """Eight rising values take the eight bars in turn."""
    assert sparkline([float(value) for value in range(8)]) == "▁▂▃▄▅▆▇█"


def test_a_sparkline_shows_where_values_are_not_finite() -> None:
    """NaN and infinities become dots, and do not stretch the scale of the others."""
    assert sparkline([0.0, math.nan, 1.0, math.inf]) == "▁·█·"


def test_a_flat_or_empty_sparkline_has_no_scale() -> None:
    """Equal values stand on the lowest bar, no values draw nothing."""
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([]) == ""


@given(st.lists(st.floats(), max_size=100), st.integers(min_value=1, max_value=40))
def test_a_sparkline_never_exceeds_its_width(values: list[float], width: int) -> None:
    """Whatever the values, extremes of the float range too, there is a bar for each up to the width."""
    assert len(sparkline(values, width)) == min(width, len(values))


@pytest.mark.parametrize(
    ("duration_ns", "shown"),
    [
        (0, "0 s"),
        (900, "0.90 µs"),
        (850_000, "850 µs"),
        (12_340_000, "12.3 ms"),
        (999_600_000, "1000 ms"),
        (4_500_000_000, "4.50 s"),
        (200_000_000_000, "3m 20s"),
        (7_500_000_000_000, "2h 05m"),
        (273_600_000_000_000, "3d 4h"),
    ],
)
def test_durations_are_shown_with_the_unit_that_fits(duration_ns: int, shown: str) -> None:
    """A duration is shown in three digits and its unit, from a minute on in two units."""
    assert format_duration(duration_ns) == shown


def test_ages_sizes_and_numbers_are_short() -> None:
    """Ages are in whole seconds and never negative, sizes in binary units, numbers in four digits or whole."""
    assert format_age(0, 12_900_000_000) == "12 s"
    assert format_age(10, 0) == "0 s"
    assert [format_bytes(size) for size in (512, 3_565_158, 1023 * 1024)] == ["512 B", "3.40 MiB", "1023 KiB"]
    assert [format_number(value) for value in (3.0, 0.123456, 1e20, math.nan)] == ["3", "0.1235", "1e+20", "NaN"]


def test_control_characters_are_escaped() -> None:
    """A name cannot move the cursor or break a line; letters of any script stay."""
    assert clean("a\x1b[2Jb\nc\u202e") == "a\\x1b[2Jb\\nc\\u202e"
    assert clean("perte_é 损失") == "perte_é 损失"


@pytest.mark.parametrize("is_found", [True, False], ids=["on PATH", "not on PATH"])
def test_a_command_that_is_shown_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_found: bool
) -> None:
    """It calls the program by its name only where the shell finds this one by that, and quotes what has spaces."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    program = folder / "runspan"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program), "demo"])
    monkeypatch.setenv("PATH", str(folder if is_found else tmp_path))
    called = "runspan" if is_found else str(program)
    assert shlex.split(command_line("import", "/data/my runs")) == [called, "import", "/data/my runs"]


def test_counted_things_have_their_plural() -> None:
    """One thing, and several or none of it."""
    assert [counted(1, "run"), counted(0, "run"), counted(4, "process")] == ["1 run", "0 runs", "4 processes"]


def test_json_has_names_for_floats_that_it_cannot_write() -> None:
    """NaN and infinities at any depth become the strings that a trace file has for them."""
    document = plain({"a": [math.nan, {"b": -math.inf}], "c": math.inf, "d": "\ud800"})
    assert document == {"a": ["NaN", {"b": "-Infinity"}], "c": "Infinity", "d": "\ufffd"}
    json.dumps(document, allow_nan=False)
