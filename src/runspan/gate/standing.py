"""Whether a record stands: whether what it measured is what the checked-out commit would measure."""

from __future__ import annotations

import os
import tomllib
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from runspan._git import GitError
from runspan.errors import GateError
from runspan.gate._bytecode import is_own_bytecode
from runspan.gate._links import follow_links
from runspan.gate._paths import folded, is_gate_file, is_under, normalized
from runspan.gate._recipe import recipe_problem
from runspan.gate._uncommitted import uncommitted_paths
from runspan.gate.baseline import BOUNDS_PATH, CONFIG_PATH, GateConfig, parse_config
from runspan.gate.closure import TREE, hash_target, tree_attestations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runspan._git import Git
    from runspan.gate.record import GateRecord

__all__ = ["PathEffect", "Standing", "StandingKind", "Standings", "dirty_performance_paths", "load_rules"]

#: How many paths a reason names.
_NAMED = 3


class StandingKind(StrEnum):
    """Whether a record may speak for the checked-out commit."""

    STANDS = "stands"
    INVALIDATED = "invalidated"
    UNKNOWN = "unknown"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a record stands, and why.

    Attributes:
        kind: the answer.
        reason: why it does not stand, or what excused the changes since.
        full_sha: the commit that was measured; None: this repository does not have it.
        warning: what people must be told although the record stands.
    """

    kind: StandingKind
    reason: str = ""
    full_sha: str | None = None
    warning: str | None = None


class PathEffect(StrEnum):
    """What a changed path does to a benchmark's records, by the first rule that matches it."""

    BOUNDARY = "boundary"
    TEST = "test"
    OUTSIDE = "outside the performance paths"
    EXCLUDED = "excluded"
    PERFORMANCE = "performance"

    @property
    def invalidates(self) -> bool:
        """Whether a record from before the change no longer stands."""
        return self in (PathEffect.BOUNDARY, PathEffect.PERFORMANCE)


def load_rules(git: Git, revision: str = "HEAD") -> GateConfig:
    """Return the rules of a commit, their paths normalized; what links lead to is a performance path too.

    Raises:
        GateError: the commit has none, they cannot be used, or a performance path does not exist in it.
        GitError: git gives no answer.
    """
    text = git.show(revision, CONFIG_PATH)
    if text is None:
        raise GateError(f"{CONFIG_PATH} is not committed: `runspan gate init` writes one")
    config = parse_config(text)
    rules = msgspec.structs.replace(
        config,
        perf_paths=[normalized(path) for path in config.perf_paths],
        test_paths=[normalized(path) for path in config.test_paths],
        boundary_paths=[normalized(path) for path in config.boundary_paths],
        excluded={name: [normalized(path) for path in paths] for name, paths in config.excluded.items()},
    )
    if not rules.perf_paths:
        raise GateError(f"{CONFIG_PATH}: perf_paths is empty: name the files and folders that a measurement depends on")
    present = git.entries(revision, rules.perf_paths)
    if absent := [path for path in rules.perf_paths if path not in present]:
        raise GateError(f"{CONFIG_PATH}: perf_paths names {', '.join(map(repr, absent))}: no such path at {revision}")
    links = follow_links(git, revision, rules.perf_paths, rules.test_paths)
    return msgspec.structs.replace(rules, perf_paths=[*rules.perf_paths, *links.inside])


def dirty_performance_paths(git: Git, config: GateConfig) -> list[str]:
    """Return the performance and boundary paths that are not, or may not be, as committed.

    A link out of the repository is one of them: no commit holds what it leads to. Tests do not count, nor the gate's
    own files, nor bytecode that Python itself made of the source beside it.

    Raises:
        GitError: git gives no answer.
    """
    tests = [normalized(path) for path in config.test_paths]
    boundaries = [normalized(path) for path in config.boundary_paths]
    measured = [normalized(path) for path in config.perf_paths]
    outside = follow_links(git, "HEAD", measured, tests).outside
    dirty = sorted({*uncommitted_paths(git, [*measured, *boundaries]), *outside})
    counted = [path for path in dirty if is_under(path, boundaries) or not is_under(path, tests)]
    named = [path for path in measured if path != "."]
    foreign = [path for path in counted if not is_gate_file(path) or is_under(path, [*named, *boundaries])]
    return [path for path in foreign if not is_own_bytecode(git.top / path)]


class Standings:
    """Answers for all records of a repository; git is asked once about each commit.

    Args:
        git: the repository.
        rules: its rules at HEAD.
    """

    def __init__(self, git: Git, rules: GateConfig) -> None:
        self._git = git
        self._rules = rules
        # Letters of another case do not lead out of these: some file systems do not tell them apart.
        self._boundaries = [folded(path) for path in rules.boundary_paths if path != CONFIG_PATH]
        self._measured = [folded(path) for path in rules.perf_paths]
        self._measured_by_name = [path for path in self._measured if path != "."]
        self._full_shas: dict[str, str | None] = {}
        self._changes: dict[str, tuple[str, ...]] = {}
        self._effects: dict[tuple[str, tuple[str, ...]], list[tuple[str, PathEffect]]] = {}
        self._invalidations: dict[tuple[str, tuple[str, ...]], list[tuple[str, PathEffect]]] = {}
        self._same_rules: dict[str, bool] = {}
        self._declarations: dict[str, dict[str, Any]] = {}
        self._rehashed: dict[str, Any] = {}
        self._trees: dict[str, str] | None = None

    def of(self, record: GateRecord) -> Standing:
        """Say whether a record stands."""
        try:
            return self._of(record)
        except GitError as error:
            return Standing(kind=StandingKind.UNKNOWN, reason=f"git gives no answer about {record.git_sha}: {error}")

    def full_sha(self, record: GateRecord) -> str | None:
        """Return the commit that a record measured; None: this repository does not have it."""
        sha = record.git_sha
        if sha not in self._full_shas:
            self._full_shas[sha] = self._git.commit_of_sha(sha)
        return self._full_shas[sha]

    def effects(self, full_sha: str, benchmark_id: str) -> list[tuple[str, PathEffect]]:
        """Return the paths that changed since a commit, and what each does to a benchmark's records.

        Raises:
            GitError: git gives no answer.
        """
        excluded = tuple(self._rules.excluded.get(benchmark_id, ()))
        if (full_sha, excluded) not in self._effects:
            self._effects[full_sha, excluded] = [
                (path, self._effect(path, full_sha, excluded)) for path in self._changed(full_sha)
            ]
        return self._effects[full_sha, excluded]

    def _invalidating(self, full_sha: str, benchmark_id: str) -> list[tuple[str, PathEffect]]:
        excluded = tuple(self._rules.excluded.get(benchmark_id, ()))
        if (full_sha, excluded) not in self._invalidations:
            effects = self.effects(full_sha, benchmark_id)
            self._invalidations[full_sha, excluded] = [item for item in effects if item[1].invalidates]
        return self._invalidations[full_sha, excluded]

    def _of(self, record: GateRecord) -> Standing:
        full_sha = self.full_sha(record)
        problem = recipe_problem(self._git, record) or self._declaration_problem(record, full_sha)
        if problem is not None:
            return Standing(kind=StandingKind.INVALIDATED, reason=problem, full_sha=full_sha)
        if full_sha is None:
            return self._by_trees(record)
        effects = self._invalidating(full_sha, record.benchmark_id)
        changed = [path for path, _ in effects]
        if not changed:
            return Standing(kind=StandingKind.STANDS, full_sha=full_sha)
        reason = f"{_listed(changed)} changed since {record.git_sha}"
        if any(effect is PathEffect.BOUNDARY for _, effect in effects):
            return Standing(kind=StandingKind.INVALIDATED, reason=reason, full_sha=full_sha)
        if (refusal := self._closure_problem(record, changed)) is not None:
            return Standing(kind=StandingKind.INVALIDATED, reason=f"{reason}{refusal}", full_sha=full_sha)
        reason = f"{reason}, and no target compiles to anything else"
        return Standing(kind=StandingKind.STANDS, reason=reason, full_sha=full_sha)

    def _changed(self, full_sha: str) -> tuple[str, ...]:
        if full_sha not in self._changes:
            self._changes[full_sha] = self._git.changed_paths(full_sha)
        return self._changes[full_sha]

    def _effect(self, path: str, full_sha: str, excluded: Sequence[str]) -> PathEffect:
        rules = self._rules
        if path == CONFIG_PATH and self._rules_differ(full_sha):
            return PathEffect.BOUNDARY
        if is_under(folded(path), self._boundaries) and path != CONFIG_PATH:
            return PathEffect.BOUNDARY
        if is_under(path, rules.test_paths):
            return PathEffect.TEST
        # The rules are compared parsed: a comment in them changes no measurement.
        measured = self._measured_by_name if is_gate_file(path) else self._measured
        if path == CONFIG_PATH or not is_under(folded(path), measured):
            return PathEffect.OUTSIDE
        if is_under(path, excluded):
            return PathEffect.EXCLUDED
        return PathEffect.PERFORMANCE

    def _rules_differ(self, full_sha: str) -> bool:
        if full_sha not in self._same_rules:
            then, now = (_parsed(self._git.show(revision, CONFIG_PATH)) for revision in (full_sha, "HEAD"))
            self._same_rules[full_sha] = then is not None and then == now
        return not self._same_rules[full_sha]

    def _declaration_problem(self, record: GateRecord, full_sha: str | None) -> str | None:
        """Say that HEAD's benchmark runs something else; where it was not declared another program ran it."""
        if full_sha is None or BOUNDS_PATH not in self._changed(full_sha):
            return None
        then, now = (self._declared(revision).get(record.benchmark_id) for revision in (full_sha, "HEAD"))
        if not isinstance(then, dict) or not isinstance(now, dict) or _what_runs(then) == _what_runs(now):
            return None
        return f"{BOUNDS_PATH} declares another callable or command for it since {record.git_sha}"

    def _declared(self, revision: str) -> dict[str, Any]:
        if revision not in self._declarations:
            tree = _parsed(self._git.show(revision, BOUNDS_PATH)) or {}
            declared = tree.get("benchmarks")
            self._declarations[revision] = declared if isinstance(declared, dict) else {}
        return self._declarations[revision]

    def _closure_problem(self, record: GateRecord, changed: Sequence[str]) -> str | None:
        """Say why the targets that a record attests do not excuse these changes; "" when it attests none."""
        if not any(not name.startswith(TREE) for name in record.closure):
            return ""
        targets = {name: [normalized(path) for path in target.paths] for name, target in self._rules.targets.items()}
        affected = [name for name, paths in targets.items() if any(is_under(path, paths) for path in changed)]
        if stray := [path for path in changed if not any(is_under(path, paths) for paths in targets.values())]:
            return f"; {_listed(stray)}: part of no target"
        for name in affected:
            attested = record.closure.get(name)
            if attested is None:
                return f"; the record says nothing of target {name!r}"
            now = self._rehash(name)
            if isinstance(now, str):
                return f"; target {name!r} cannot be hashed: {now}"
            if now != attested:
                return f"; target {name!r} compiles to something else"
        return None

    def _rehash(self, name: str) -> Any:
        """Return what a target compiles to at HEAD, or why that cannot be told."""
        if name not in self._rehashed:
            try:
                self._rehashed[name] = hash_target(self._git, self._rules.targets[name])
            except GateError as error:
                self._rehashed[name] = str(error)
        return self._rehashed[name]

    def _by_trees(self, record: GateRecord) -> Standing:
        """Judge a record of a commit that is gone, as those of a squashed branch are, by the objects it attests."""
        if self._trees is None:
            paths = [*self._rules.perf_paths, *self._rules.boundary_paths, CONFIG_PATH]
            now = tree_attestations(self._git, paths)
            self._trees = {name: closure.hash for name, closure in now.items()}
        attested = {name: closure.hash for name, closure in record.closure.items() if name.startswith(TREE)}
        required = [*self._rules.perf_paths, *self._rules.boundary_paths]
        missing = [path for path in required if f"{TREE}{path}" in self._trees and f"{TREE}{path}" not in attested]
        different = [name.removeprefix(TREE) for name, oid in attested.items() if self._trees.get(name) != oid]
        gone = f"this repository has no commit {record.git_sha}"
        if attested and not missing and not different:
            return Standing(
                kind=StandingKind.STANDS,
                warning=f"{gone}: the record stands only because it attests the same content at every performance path",
            )
        if attested and different:
            gone = f"{gone}, and the content it attests is not HEAD's at {_listed(different)}"
        elif attested:
            gone = f"{gone}, and it does not attest {_listed(missing)}"
        shallow = ": the clone is shallow, fetch the full history" if self._git.is_shallow() else ""
        return Standing(kind=StandingKind.UNKNOWN, reason=f"{gone}{shallow}")


def _what_runs(declaration: dict[str, Any]) -> tuple[Any, Any]:
    return declaration.get("callable"), declaration.get("command")


def _parsed(text: bytes | None) -> dict[str, Any] | None:
    try:
        return None if text is None else tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _listed(paths: Sequence[str]) -> str:
    named = ", ".join(os.fsencode(path).decode("utf-8", "replace") for path in paths[:_NAMED])
    return named if len(paths) <= _NAMED else f"{named} and {len(paths) - _NAMED} more"
