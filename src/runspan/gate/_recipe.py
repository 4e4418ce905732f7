"""The recipe that a model server was started by: its identity, and whether a record's is still the repository's."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from runspan._git import GitError
from runspan.errors import GateError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runspan._git import Git
    from runspan.gate.record import GateRecord

__all__ = ["recipe_problem", "recipe_sha256"]

_SUFFIXES = (".yaml", ".yml")


def recipe_sha256(text: bytes, overrides: Mapping[str, str]) -> str:
    """Return the identity of a recipe and a run's overrides.

    The recipe is parsed, its ``metadata`` dropped, the overrides put into its ``defaults``; then maps are written as
    sorted arrays of [key, value], scalars as the strings that stand in the recipe, as compact JSON.

    Raises:
        GateError: it is no YAML of a recipe.
        MissingExtraError: PyYAML is not installed.
    """
    try:
        import yaml  # noqa: PLC0415 - only who serves recipes has it
    except ImportError:
        raise MissingExtraError("Checking a recipe", "recipes") from None
    try:
        tree = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - makes strings, lists and dicts only
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise GateError(f"no YAML: {error}") from error
    defaults = tree.get("defaults", {}) if isinstance(tree, dict) else None
    if not isinstance(defaults, dict):
        raise GateError("no recipe: expected a map, and in it `defaults`, a map too")
    recipe = {key: value for key, value in tree.items() if key != "metadata"}
    if overrides:
        recipe["defaults"] = {**defaults, **overrides}
    canonical = json.dumps(_arrays(recipe), ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def recipe_problem(git: Git, record: GateRecord) -> str | None:
    """Say why the recipe that served a record's run is not HEAD's; None when it is, or when none did.

    Raises:
        GitError: git gives no answer.
        MissingExtraError: PyYAML is not installed.
    """
    if record.served_by is None:
        return None if record.served_recipe_sha256 is None else "it has the hash of a recipe, but names none"
    if record.served_recipe_sha256 is None:
        return f"it was served by recipe {record.served_by!r}, whose hash it does not have"
    names = [f"{record.served_by}{suffix}" for suffix in _SUFFIXES]
    files = git.files("HEAD", ["."])
    found = [path for path in files if any(path == name or path.endswith(f"/{name}") for name in names)]
    if len(found) != 1:
        raise GitError(f"HEAD has {len(found)} files {names[0]!r}, expected the one recipe that served the run")
    try:
        now = recipe_sha256(git.blob(files[found[0]].oid), record.serve_overrides)
    except GateError as error:
        return f"recipe {found[0]} cannot be read: {error}"
    return None if now == record.served_recipe_sha256 else f"recipe {found[0]} is not the one that served the run"


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return [[key, _arrays(item)] for key, item in sorted(value.items())]
    return [_arrays(item) for item in value] if isinstance(value, list) else value
