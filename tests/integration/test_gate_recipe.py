from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from runspan.errors import GateError
from runspan.gate import GateOutcome
from runspan.gate._recipe import recipe_sha256
from support.gated import GatedRepository

if TYPE_CHECKING:
    from pathlib import Path

_RECIPE = "metadata: {author: eve}\ndefaults: {depth: 2, fast: true}\nenv: {A: '1'}\nsteps: [x, {b: 1, a: 2}]\n"


def test_the_identity_of_a_recipe_has_its_fixed_form() -> None:
    """Maps are sorted arrays, scalars are strings, metadata is gone, and overrides stand in the defaults."""
    canonical = (
        '[["defaults",[["depth","3"],["fast","true"]]],["env",[["A","1"]]],["steps",["x",[["a","2"],["b","1"]]]]]'
    )
    assert recipe_sha256(_RECIPE.encode(), {"depth": "3"}) == hashlib.sha256(canonical.encode()).hexdigest()
    assert recipe_sha256(b"# why\n" + _RECIPE.replace("eve", "bob").encode(), {}) == recipe_sha256(_RECIPE.encode(), {})


@pytest.mark.parametrize("text", [b"", b"[1]", b"defaults: 3", b"a: [", b"\xff\xfe\xff"])
def test_what_is_no_recipe_is_an_error(text: bytes) -> None:
    """A recipe is a YAML map whose defaults are a map."""
    with pytest.raises(GateError):
        recipe_sha256(text, {})


def test_a_changed_recipe_invalidates(tmp_path: Path) -> None:
    """The recipe that served the run must be HEAD's, also where it lies outside the performance paths."""
    repository = GatedRepository.gated(tmp_path / "repository")
    repository.commit({"recipes/family/stem.yaml": _RECIPE})
    sha256 = recipe_sha256(_RECIPE.encode(), {})
    repository.measure(served_by="family/stem", served_recipe_sha256=sha256)
    assert repository.outcome() is GateOutcome.PASS
    repository.commit({"recipes/family/stem.yaml": _RECIPE.replace("eve", "bob")})
    assert repository.outcome() is GateOutcome.PASS
    repository.commit({"recipes/family/stem.yaml": _RECIPE.replace("true", "false")})
    assert repository.outcome() is GateOutcome.MISSING
    repository.commit({"recipes/family/stem.yaml": "["})
    assert repository.outcome() is GateOutcome.MISSING


def test_a_recipe_that_cannot_be_told_is_no_pass(tmp_path: Path) -> None:
    """No hash, a hash without a recipe's name, and a recipe that HEAD has not or has twice do not pass."""
    repository = GatedRepository.gated(tmp_path / "repository")
    sha256 = recipe_sha256(_RECIPE.encode(), {})
    repository.measure(served_by="family/stem")
    assert repository.outcome() is GateOutcome.MISSING
    repository.measure(served_recipe_sha256=sha256)
    assert repository.outcome() is GateOutcome.MISSING
    repository.measure(served_by="family/stem", served_recipe_sha256=sha256)
    assert repository.outcome() is GateOutcome.UNKNOWN
    repository.commit({"a/family/stem.yaml": _RECIPE, "b/family/stem.yml": _RECIPE})
    assert repository.outcome() is GateOutcome.UNKNOWN
