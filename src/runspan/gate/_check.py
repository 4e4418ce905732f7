"""The check of a repository's gate: does each benchmark have a record that stands and is good enough?

Everything fails closed: what is absent, unreadable or partial ends in an outcome of its own, which is no pass.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from runspan._git import Git, GitError
from runspan.errors import GateError
from runspan.gate._changes import bounds_changes, rules_changes
from runspan.gate._folder import read_folder, record_changes
from runspan.gate._judging import Judge
from runspan.gate._results import GateOutcome, GateReport, GateResult
from runspan.gate._sources import unwatched_sources
from runspan.gate.baseline import BOUNDS_PATH, CONFIG_PATH, Baseline, GateConfig, parse_baseline, parse_config
from runspan.gate.signing import check_signers
from runspan.gate.standing import Standings, load_rules

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

__all__ = ["DEFAULT_BASE", "check", "load_baseline", "load_config", "trusted_signers"]

DEFAULT_BASE = "origin/HEAD"


def check(
    root: Path,
    benchmark_ids: Sequence[str] = (),
    *,
    base: str = DEFAULT_BASE,
    allow_removed: Collection[str] = (),
    allow_other_hardware: bool = False,
    now_unix_s: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> GateReport:
    """Check a repository's benchmarks.

    Args:
        root: the repository's top, which holds ``.benchmarks``.
        benchmark_ids: which benchmarks; none: every one that has an entry here or at the merge base, or to which a
            record was added since.
        base: the revision that the work is to be merged into.
        allow_removed: benchmarks whose entries may be gone, all or some.
        allow_other_hardware: whether a record of a machine without an entry is judged by those of all others.
        now_unix_s: the wall time; None: the clock's.
        environ: the environment that git gets; None: the process's.

    Raises:
        GateError: the rules, the bounds, the base or an argument cannot be used.
        MissingExtraError: signatures are required, and cryptography is not installed.
    """
    now_unix_s = time.time() if now_unix_s is None else now_unix_s
    head = None
    try:
        git = Git.at(root, environ)
        head = git.commit("HEAD")
        base_tip = _base_commit(git, base)
        merge_base = git.merge_base(base_tip, head)
        rules = load_rules(git)
        baseline, base_baseline = load_baseline(git, "HEAD"), load_baseline(git, merge_base)
        changes = record_changes(git, merge_base)
        config, base_config = load_config(git, head), load_config(git, merge_base)
        unwatched = unwatched_sources(git, rules, baseline.benchmarks)
        keys = check_signers(trusted_signers(load_config(git, base_tip), base_config, config))
    except GitError as error:
        reason = f"git gives no answer: {error}"
        results = [
            GateResult(benchmark_id=benchmark_id, outcome=GateOutcome.UNKNOWN, problems=(reason,))
            for benchmark_id in dict.fromkeys(benchmark_ids)
        ]
        return GateReport(results=tuple(results), head=head, reason=reason)
    lost_entries = base_baseline.removed_in(baseline)
    removed = base_baseline.benchmark_ids - baseline.benchmark_ids
    if not_removed := sorted(set(allow_removed) - lost_entries.keys()):
        raise GateError(
            f"--allow-removed {not_removed[0]}: the entries of this benchmark were not removed since {base}"
        )
    unlisted = {path.split("/")[1] for path in changes.added} - baseline.benchmark_ids - removed
    with_records = {name for name in unlisted if _has_records(root, name, now_unix_s)}
    wanted = set(benchmark_ids) or baseline.benchmark_ids | removed | with_records
    judge = Judge(Standings(git, rules), baseline, keys, changes.added, allow_other_hardware=allow_other_hardware)
    results = []
    for benchmark_id in sorted(wanted - (removed & set(allow_removed))):
        if benchmark_id in removed:
            problem = f"its entries were removed from {BOUNDS_PATH}: --allow-removed {benchmark_id} if that is meant"
            results.append(GateResult(benchmark_id=benchmark_id, outcome=GateOutcome.MISSING, problems=(problem,)))
        else:
            found = read_folder(root, benchmark_id, now_unix_s)
            gone = [candidate for candidate in changes.lost_failures if candidate.record.benchmark_id == benchmark_id]
            result = judge.judge(benchmark_id, found.also(gone))
            if benchmark_id not in allow_removed:
                result = _without_entries(result, lost_entries.get(benchmark_id, []))
            results.append(_warned(result, unwatched.get(benchmark_id, [])))
    return GateReport(
        results=tuple(results),
        head=head,
        merge_base=merge_base,
        bounds_changes=bounds_changes(base_baseline, baseline),
        rules_changes=rules_changes(base_config, config),
        reason=None if results else f"no benchmark has an entry in {BOUNDS_PATH}: nothing was checked",
    )


def load_baseline(git: Git, revision: str) -> Baseline:
    """Return the bounds of a commit; one without the file has no entries.

    Raises:
        GateError: they cannot be used.
        GitError: git gives no answer.
    """
    text = git.show(revision, BOUNDS_PATH)
    return Baseline() if text is None else parse_baseline(text, f"{BOUNDS_PATH} at {revision}")


def load_config(git: Git, revision: str) -> GateConfig:
    """Return the rules of a commit as they are written; one without the file has none.

    Raises:
        GateError: they cannot be read.
        GitError: git gives no answer.
    """
    text = git.show(revision, CONFIG_PATH)
    return GateConfig() if text is None else parse_config(text, f"{CONFIG_PATH} at {revision}")


def trusted_signers(base: GateConfig, merge_base: GateConfig, head: GateConfig) -> Sequence[str]:
    """Return who may sign: whom the base names, so that no change appoints its own signers or keeps dismissed ones.

    Where the base names nobody, those count that it named when the work branched off, and else those that the work
    names itself.
    """
    return base.signers or merge_base.signers or head.signers


def _without_entries(result: GateResult, lost: Sequence[str]) -> GateResult:
    """Let no result pass while an entry is gone, by which another record might have been judged."""
    if not lost:
        return result
    outcome = GateOutcome.MISSING if result.outcome is GateOutcome.PASS else result.outcome
    problem = f"its entry for {', '.join(lost)} was removed from {BOUNDS_PATH}: --allow-removed {result.benchmark_id}"
    return msgspec.structs.replace(result, outcome=outcome, problems=(*result.problems, f"{problem} if that is meant"))


def _warned(result: GateResult, unwatched: Sequence[str]) -> GateResult:
    warnings = [f"{path}, which it is run from, is in no perf_paths: its changes are not seen" for path in unwatched]
    return msgspec.structs.replace(result, warnings=(*result.warnings, *warnings))


def _base_commit(git: Git, base: str) -> str:
    try:
        return git.commit(base)
    except GitError as error:
        raise GateError(f"--base {base}: {error}; fetch it, or name the branch to be merged into") from error


def _has_records(root: Path, folder: str, now_unix_s: float) -> bool:
    """Whether a folder without an entry is one of a benchmark; other programs keep files in ``.benchmarks`` too."""
    try:
        return bool(read_folder(root, folder, now_unix_s).records)
    except GateError:  # no benchmark has such a name
        return False
