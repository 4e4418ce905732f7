"""A run as one HTML file that opens without a network: waterfall over ranks, metric curves, step times, findings."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from runspan._output_file import whole_file
from runspan._version import __version__
from runspan.export._html_document import build_document
from runspan.export._html_spans import embeddable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["PAGE_MAX_BYTES", "export_html"]

#: What a page never exceeds, however long the run and whatever its names; real ones stay far below.
PAGE_MAX_BYTES = 32 << 20
#: In this order they make the page's one script: each uses what stands before it.
_SCRIPTS = (
    "format.js",
    "dom.js",
    "state.js",
    "chart.js",
    "waterfall.js",
    "details.js",
    "curves.js",
    "steps.js",
    "page.js",
)
_PLACEHOLDER = re.compile(r"\{\{([a-z]+)\}\}")


def export_html(traces: Sequence[Path], output: Path) -> None:
    """Write a run's traces, and the captured steps beside them, as one self-contained HTML page.

    The page asks no server for anything, and its content security policy forbids it to. It has at most
    :data:`PAGE_MAX_BYTES`: of long runs it keeps the longest spans and steps, and of long curves the points that keep
    their shape, and says so. A trace that is still written is shown as far as it is.

    Args:
        traces: the first part of each trace file.
        output: the file; it is there whole or not at all.

    Raises:
        TraceFormatError: no trace can be read.
        ConfigError: the output cannot be written.
    """
    page = _page(build_document(traces))
    with whole_file(output) as file:
        file.write(page)


def _page(document: dict[str, Any]) -> bytes:
    style = _read("page.css")
    script = "\n".join(["'use strict';", *map(_read, _SCRIPTS)])
    run = document["run"]
    values = {
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:;"
        " base-uri 'none'; form-action 'none'",
        "title": html.escape(f"{run['name'] or run['id']} · runspan"),
        "version": __version__,
        "style": style,
        "script": script,
        "data": embeddable(document).decode(),
    }
    page = _PLACEHOLDER.sub(lambda found: values[found[1]], _read("page.html"))
    return page.encode()


def _hash(text: str) -> str:
    """Return what a content security policy knows an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return resources.files("runspan.export").joinpath("_page", name).read_text("utf-8")
