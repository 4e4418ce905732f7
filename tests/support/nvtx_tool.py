"""A tool that NVTX loads in place of a profiler: it writes down each range that a program opens and closes."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NvtxTool", "RangeEvent", "nvtx_tool_or_skip"]

# NVTX looks for the function InitializeInjectionNvtx2 in the library that NVTX_INJECTION64_PATH names, and hands it a
# table of its own functions to replace. Numbers and layouts are those of NVTX 3's public headers: export table 1 is the
# callbacks', module 5 the functions of domains, and in it 4 opens a range, 5 closes one, 10 registers a text.
_SOURCE = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
};
struct callbacks {
    size_t size;
    int (*function_table)(int module, void ****table, unsigned *size);
};

static FILE *out;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void write_down(const char *what, const char *name)
{
    pthread_mutex_lock(&lock);
    fprintf(out, "%s\t%lx\t%s\n", what, (unsigned long)pthread_self(), name);
    fflush(out);
    pthread_mutex_unlock(&lock);
}

static int open_range(void *domain, const struct attributes *range)
{
    write_down("open", range->message);
    return 0;
}

static int close_range(void *domain)
{
    write_down("close", "");
    return 0;
}

static void *register_text(void *domain, const char *text) { return strdup(text); }

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t))
{
    const struct callbacks *callbacks = export_table(1);
    void ***table;
    unsigned size;
    out = fopen(getenv("NVTX_TOOL_OUTPUT"), "a");
    if (!out || !callbacks->function_table(5, &table, &size) || size <= 10)
        return 0;
    *table[4] = (void *)open_range;
    *table[5] = (void *)close_range;
    *table[10] = (void *)register_text;
    return 1;
}
"""


@dataclass(frozen=True)
class RangeEvent:
    """A range was opened, or the innermost one of a thread closed (``name`` is None)."""

    thread: str
    name: str | None


class NvtxTool:
    """A built tool.

    Args:
        library: the shared library.
        output: the file that it writes.
    """

    def __init__(self, library: Path, output: Path) -> None:
        self.variables = {"NVTX_INJECTION64_PATH": str(library), "NVTX_TOOL_OUTPUT": str(output)}
        self._output = output

    @property
    def events(self) -> list[RangeEvent]:
        """What programs that ran with :attr:`variables` have opened and closed."""
        if not self._output.exists():
            return []
        lines = [line.split("\t") for line in self._output.read_text("utf-8").split("\n") if line]
        return [RangeEvent(thread, name if what == "open" else None) for what, thread, name in lines]

    @property
    def names(self) -> list[str]:
        """The names of the ranges that were opened, in order."""
        return [event.name for event in self.events if event.name is not None]


def nvtx_tool_or_skip(folder: Path) -> NvtxTool:
    """Build the tool in a folder; without a C compiler or the ``nvtx`` package the test is skipped."""
    pytest.importorskip("nvtx")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler makes the NVTX tool, and none is installed")
    source, library = folder / "nvtx_tool.c", folder / "nvtx_tool.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    return NvtxTool(library, folder / "nvtx_ranges.txt")
