"""The TypeScript compiler over the committed dashboards, with the types that Grafana publishes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stack.build import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["type_errors", "types_or_skip"]

_PINS = Path(__file__).resolve().parents[1] / "stack" / "programs" / "dashboard-types"
_PIN_FILES = ("package.json", "package-lock.json")
_OPTIONS = (
    "--strict",
    "--noEmit",
    "--skipLibCheck",
    "--target",
    "es2022",
    "--module",
    "esnext",
    "--moduleResolution",
    "bundler",
)
#: What the schema calls the options of each type of panel.
_PANELS = {
    "heatmap": "Heatmap",
    "stat": "Stat",
    "state-timeline": "StateTimeline",
    "table": "Table",
    "timeseries": "TimeSeries",
}
_TIMEOUT_S = 300
_PRELUDE = """
import type { Dashboard } from '@grafana/schema';

// A JSON text has the values of string enumerations, not their members.
type Json<T> = unknown extends T ? T
  : T extends string ? `${T}`
  : T extends number | boolean | null | undefined ? T
  : T extends Array<infer Item> ? Json<Item>[]
  : T extends object ? { [Key in keyof T]: Json<T[Key]> }
  : T;

// What the Prometheus source adds to an annotation, which the schema leaves to each source.
interface PrometheusAnnotation {
  target?: { expr?: string; interval?: string; refId?: string };
  titleFormat?: string;
  textFormat?: string;
}
type Board = Json<Dashboard> & { annotations?: { list?: PrometheusAnnotation[] } };
"""


def types_or_skip() -> Path:
    """Return a folder with the compiler and the types, installed once a pin into the user's cache.

    Without Node the test is skipped, or fails where ``RUNSPAN_REQUIRE_STACK=1`` says that nothing may be missing.
    """
    digest = hashlib.sha256(b"".join((_PINS / file).read_bytes() for file in _PIN_FILES)).hexdigest()[:16]
    cache = cache_folder(os.environ)
    folder = cache / f"{_PINS.name}-{digest}"
    if folder.is_dir():
        return folder
    if shutil.which("npm") is None or shutil.which("node") is None:
        missing = "dashboards are type-checked with Node: install node and npm"
        if os.environ.get("RUNSPAN_REQUIRE_STACK") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _install(folder)
    return folder


def type_errors(dashboards: Mapping[str, Mapping[str, Any]], types: Path, folder: Path) -> str:
    """Return what the compiler finds wrong with dashboards and their panels' options; empty: nothing.

    Args:
        dashboards: by uid.
        types: what :func:`types_or_skip` returned.
        folder: where the program is written that it compiles.
    """
    lines = [_PRELUDE]
    for name in _PANELS.values():
        module = f"@grafana/schema/dist/esm/raw/composable/{name.lower()}/panelcfg/x/{name}PanelCfg_types.gen"
        lines.append(f"import type * as {name} from '{module}';")
    for uid, board in dashboards.items():
        variable = uid.replace("-", "_")
        lines.append(f"export const {variable}: Board = {json.dumps(board, indent=2)};")
        for panel in board["panels"]:
            if panel["type"] != "row":
                panel_type = f"Json<{_PANELS[panel['type']]}.Options>"
                lines.append(f"export const {variable}_{panel['id']}: {panel_type} = {json.dumps(panel['options'])};")
    (folder / "dashboards.ts").write_text("\n".join(lines), "utf-8")
    modules = folder / "node_modules"
    if not modules.exists():
        modules.symlink_to(types / "node_modules")
    compiler = types / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run(
        ["node", str(compiler), *_OPTIONS, "dashboards.ts"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return done.stdout + done.stderr


def _install(folder: Path) -> None:
    """Install in a temporary folder beside the final one, which then appears whole or not at all."""
    with tempfile.TemporaryDirectory(prefix=f".{_PINS.name}-", dir=folder.parent) as temporary:
        out = Path(temporary, "out")
        out.mkdir()
        for file in _PIN_FILES:
            shutil.copy(_PINS / file, out)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=out, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
        out.rename(folder)
