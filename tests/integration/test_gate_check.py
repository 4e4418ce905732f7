from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from runspan._git import Git
from runspan.errors import GateError
from runspan.gate import FrameStatus, GateOutcome, Hardware
from runspan.gate.standing import Standings, dirty_performance_paths, load_rules
from support.gate import TIME, a_record
from support.gated import CONFIG, NOW, GatedRepository, bounds_text
from support.repositories import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NO_SHA = "0" * 10


@pytest.fixture(autouse=True)
def _own_settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GIT_")]:
            patch.delenv(name)
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        yield


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the repository that each test gets a copy of."""
    return GatedRepository.gated(tmp_path_factory.mktemp("template") / "repository").top


@pytest.fixture
def repository(template: Path, tmp_path: Path) -> GatedRepository:
    """Return a repository with a gate, and no record yet."""
    shutil.copytree(template, tmp_path / "repository")
    return GatedRepository(tmp_path / "repository")


# What passes.


def test_a_record_of_head_within_its_bounds_passes(repository: GatedRepository) -> None:
    """A clean record of the commit that is checked out passes, and the result says what was measured on what."""
    repository.measure()
    report = repository.check()
    (result,) = report.results
    assert (result.outcome, result.problems, result.warnings) == (GateOutcome.PASS, (), ())
    assert result.record == ".benchmarks/decode/2026-01-02.json"
    assert result.git_sha == repository.head[:10]
    assert result.hardware_key == "h100"
    assert [(metric.metric, metric.value, metric.holds) for metric in result.metrics] == [("latency_ms", 12.5, True)]
    assert report.exit_code == 0
    assert report.head == report.merge_base == repository.head


@pytest.mark.parametrize("path", ["docs/a.md", "src/tests/t.py", "src/other/o.py", "srcs/a.py", "README.md"])
def test_changes_outside_the_performance_paths_leave_a_record_standing(repository: GatedRepository, path: str) -> None:
    """Documents, tests, excluded paths, and a folder whose name only begins alike invalidate nothing."""
    repository.measure()
    repository.commit({path: "changed\n"})
    assert repository.outcome() is GateOutcome.PASS


def test_a_bound_is_edited_without_a_new_measurement(repository: GatedRepository) -> None:
    """A tighter bound that the record still keeps passes, one that it does not keep fails, and both are shown."""
    repository.measure()
    repository.commit({".benchmarks/bounds.toml": bounds_text(bounds="{ latency_ms = { max = 13.0 } }")})
    report = repository.check()
    assert report.exit_code == 0
    assert report.bounds_changes == (
        "decode (h100, default) bound on latency_ms: max=15.0 noise=0.0 → max=13.0 noise=0.0",
    )
    repository.commit({".benchmarks/bounds.toml": bounds_text(bounds="{ latency_ms = { max = 12.0 } }")})
    assert repository.outcome() is GateOutcome.FAIL


def test_a_squash_merge_leaves_a_record_standing(repository: GatedRepository) -> None:
    """A record of a branch's commit stands for the squashed commit with the same content."""
    repository.git("switch", "-q", "-c", "work")
    repository.commit({"src/a.py": "a = 2\n"})
    repository.measure()
    repository.commit()
    repository.git("switch", "-q", "main")
    repository.git("merge", "-q", "--squash", "work")
    repository.commit()
    assert repository.outcome() is GateOutcome.PASS


def test_a_rebase_leaves_a_record_standing(repository: GatedRepository) -> None:
    """After a rebase onto commits that change no performance path the record stands; onto others it does not."""
    repository.git("switch", "-q", "-c", "work")
    repository.commit({"src/a.py": "a = 2\n"})
    repository.measure()
    repository.commit()
    repository.git("switch", "-q", "main")
    repository.commit({"docs/a.md": "more\n"})
    repository.git("switch", "-q", "work")
    repository.git("rebase", "-q", "main")
    assert repository.outcome() is GateOutcome.PASS
    repository.git("switch", "-q", "main")
    repository.commit({"src/b.py": "b = 1\n"})
    repository.git("switch", "-q", "work")
    repository.git("rebase", "-q", "main")
    assert repository.outcome() is not GateOutcome.PASS


def test_a_checkout_with_other_line_ends_passes(repository: GatedRepository, tmp_path: Path) -> None:
    """Where text is checked out with CRLF nothing is dirty, and rules and bounds are read as they are committed."""
    repository.measure()
    repository.commit()
    clone = tmp_path / "crlf"
    repository.git("clone", "-q", "-c", "core.autocrlf=true", str(repository.top), str(clone))
    assert b"\r\n" in (clone / "src/a.py").read_bytes()
    git = Git.at(clone)
    assert dirty_performance_paths(git, load_rules(git)) == []
    assert GatedRepository(clone).outcome(base="origin/HEAD") is GateOutcome.PASS


def test_a_comment_in_the_rules_invalidates_nothing(repository: GatedRepository) -> None:
    """The rules are compared parsed: a comment and other line ends leave a record standing, another value does not."""
    repository.measure()
    repository.commit({".benchmarks/config.toml": "# why\r\n" + CONFIG.replace("\n", "\r\n")})
    assert repository.outcome() is GateOutcome.PASS
    repository.commit({".benchmarks/config.toml": CONFIG.replace('["src/tests"]', '["src"]')})
    assert repository.outcome() is GateOutcome.MISSING


# What is measured again.


@pytest.mark.parametrize("path", ["src/a.py", "src/new.py", "build.lock", "src/deep/er.py"])
def test_a_changed_performance_path_invalidates(repository: GatedRepository, path: str) -> None:
    """A record from before a change of performance code or of a boundary path does not stand, and the path is named."""
    repository.measure()
    repository.commit({path: "changed\n"})
    result = repository.result()
    assert result.outcome is GateOutcome.MISSING
    assert any(f"{path} changed since" in problem for problem in result.problems)


def test_a_boundary_comes_before_a_test_path(repository: GatedRepository) -> None:
    """A path that is both a boundary and a test path invalidates: the first rule that matches counts."""
    repository.commit({".benchmarks/config.toml": CONFIG.replace('"build.lock"', '"src/tests/t.py"')})
    repository.measure()
    repository.commit({"src/tests/t.py": "t = 2\n"})
    assert repository.outcome() is GateOutcome.MISSING


def test_a_performance_file_renamed_out_of_its_path_invalidates(repository: GatedRepository) -> None:
    """Moving performance code to where changes do not count is a change of where it was."""
    repository.measure()
    repository.git("mv", "src/a.py", "docs/a.py")
    repository.commit()
    assert repository.outcome() is GateOutcome.MISSING
    repository.git("mv", "docs/a.py", "src/tests/a.py")
    repository.commit()
    assert repository.outcome() is GateOutcome.MISSING


@pytest.mark.parametrize("name", ["abcdef01", "cafe" * 4])
def test_the_sha_is_no_branch(repository: GatedRepository, name: str) -> None:
    """A branch that is named like a sha does not make a record stand for whatever it points to."""
    repository.measure(sha=name)
    repository.git("branch", name[:10])
    assert repository.outcome() is GateOutcome.UNKNOWN


@pytest.mark.parametrize("sha", ["HEAD", "main", "--all", "", "abc", "HEAD~0"])
def test_a_sha_that_is_none_makes_no_record(repository: GatedRepository, sha: str) -> None:
    """HEAD, a branch, an option and too few digits as git_sha are a problem that names the file, also beside a pass."""
    repository.measure()
    path = repository.measure("2026-01-03")
    repository.rewrite(path, git_sha=sha)
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "2026-01-03.json is no record: git_sha" in result.problems[0].replace("no gate record: ", "")


def test_an_unknown_sha_is_unknown(repository: GatedRepository) -> None:
    """A commit that this repository does not have makes the newest record unknown, which no older pass hides."""
    repository.measure()
    repository.measure("2026-01-03", sha=_NO_SHA, recorded_at=TIME + 1)
    report = repository.check()
    assert report.results[0].outcome is GateOutcome.UNKNOWN
    assert f"no commit {_NO_SHA}" in report.results[0].problems[0]
    assert report.exit_code == 3


def test_a_shallow_clone_is_unknown_and_says_so(repository: GatedRepository, tmp_path: Path) -> None:
    """In a clone of depth one an older record's commit is missing; the reason says what to fetch."""
    repository.measure()
    repository.commit()
    repository.git("clone", "-q", "--depth=1", f"file://{repository.top}", str(tmp_path / "clone"))
    result = GatedRepository(tmp_path / "clone").result(base="origin/HEAD")
    assert result.outcome is GateOutcome.UNKNOWN
    assert "the clone is shallow, fetch the full history" in result.problems[0]


def test_a_linked_worktree_is_checked_by_its_own_commit(repository: GatedRepository, tmp_path: Path) -> None:
    """In a linked worktree the commit checked out there is what counts."""
    repository.measure()
    repository.commit()
    repository.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    side = GatedRepository(tmp_path / "side")
    assert side.outcome() is GateOutcome.PASS
    side.commit({"src/a.py": "a = 2\n"})
    assert side.outcome() is GateOutcome.MISSING
    assert repository.outcome() is GateOutcome.PASS


def test_a_repository_around_the_benchmarks_does_not_answer(repository: GatedRepository) -> None:
    """A .benchmarks folder below the top of a repository is not checked by that repository's commits."""
    shutil.copytree(repository.top / ".benchmarks", repository.top / "src/.benchmarks")
    report = GatedRepository(repository.top / "src").check("decode")
    assert report.exit_code == 3
    assert report.results[0].outcome is GateOutcome.UNKNOWN
    assert "not the top of a git repository" in report.results[0].problems[0]


def test_without_git_nothing_is_known(repository: GatedRepository, tmp_path: Path) -> None:
    """Without git, with another owner, and without a repository: no verdict, with the reason."""
    repository.measure()
    no_git = repository.check(environ={"PATH": str(tmp_path)})
    assert (no_git.exit_code, no_git.reason) == (3, "git gives no answer: there is no git on PATH")
    foreign = repository.check(environ={**os.environ, "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"})
    assert foreign.exit_code == 3
    assert "dubious ownership" in str(foreign.reason)
    shutil.rmtree(repository.top / ".git")
    assert repository.check().exit_code == 3


# What is wrong with a record.


def test_a_crashed_rerun_fails_at_once(repository: GatedRepository) -> None:
    """A newer record of a failed run fails the check, whatever its metrics and the older pass say."""
    repository.measure()
    repository.measure("2026-01-03", recorded_at=TIME + 1, frame_status=FrameStatus.FAILED)
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "the run failed" in result.problems[0]


def test_a_run_that_never_ended_fails(repository: GatedRepository) -> None:
    """A record that says Running, which no run writes, does not pass."""
    repository.rewrite(repository.measure(), frame_status="Running")
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "it did not complete" in result.problems[0]


def test_deleting_a_failure_reveals_no_older_pass(repository: GatedRepository) -> None:
    """A failed record that the change deletes is judged still while it stands; a newer pass comes before it."""
    repository.measure("2026-01-02")
    failed = repository.measure("2026-01-03", recorded_at=TIME + 1, verdict="FAIL")
    repository.commit()
    repository.git("branch", "-f", "base")
    failed.unlink()
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "2026-01-03.json (deleted or altered since" in result.problems[0]
    repository.measure("2026-01-04", recorded_at=TIME + 2)
    assert repository.outcome() is GateOutcome.PASS


def test_files_of_other_programs_are_no_benchmarks(repository: GatedRepository) -> None:
    """JSON of other programs in .benchmarks requires nothing, unless it lies in the folder of a benchmark."""
    repository.measure()
    repository.write({".benchmarks/Linux-CPython-3.11/0001_x.json": "{}", ".benchmarks/.cache/x.json": "{}"})
    assert repository.check().exit_code == 0


def test_dirty_paths_fail(repository: GatedRepository) -> None:
    """A record that was measured with uncommitted performance code fails and names the files."""
    repository.measure(dirty_paths=["src/a.py"])
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "uncommitted changes: src/a.py" in result.problems[0]


@pytest.mark.parametrize("verdict", ["FAIL", "info", None])
def test_only_the_verdict_pass_passes(repository: GatedRepository, verdict: str | None) -> None:
    """FAIL, info and no verdict do not pass, though every bound holds."""
    repository.measure(verdict=verdict)
    assert repository.outcome() is GateOutcome.FAIL


def test_every_problem_is_collected(repository: GatedRepository) -> None:
    """Dirty paths, the verdict and each breached bound are all named at once."""
    bounds = "{ latency_ms = { max = 12.0 }, tokens = { min = 2000.0 }, absent = { max = 1.0 } }"
    repository.commit({".benchmarks/bounds.toml": bounds_text(bounds=bounds)})
    repository.measure(dirty_paths=["src/a.py"], verdict="info")
    problems = repository.result().problems
    assert len(problems) == 5
    for word in ("uncommitted", "verdict", "latency_ms is 12.5, expected at most 12", "tokens", "absent is missing"):
        assert any(word in problem for problem in problems), word


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no record"),
        (b"{", "no record"),
        (b'{"schema": 1}', "no record"),
        (b"[]", "no record"),
        (b"\xff", "no record"),
        (b'{"schema": 1, "schema": 1}', "stands twice"),
        (b'{"schema": 2}', "newer"),
        (b'{"schema": 1, "metrics": {"a": NaN}}', "no JSON"),
        (b"[" * 100_000, "nested"),
    ],
)
def test_a_file_that_cannot_be_read_hides_behind_no_pass(
    repository: GatedRepository, content: bytes, reason: str
) -> None:
    """Whatever lies among the records and is none, newest or not, is a problem that names it."""
    repository.measure()
    (repository.top / ".benchmarks/decode/2026-01-03.json").write_bytes(content)
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "2026-01-03.json" in result.problems[0]
    assert reason in result.problems[0]


def test_a_link_to_nowhere_and_a_folder_are_problems(repository: GatedRepository) -> None:
    """What has a record's name and is no file is a problem too."""
    repository.measure()
    (repository.top / ".benchmarks/decode/a.json").symlink_to("nowhere")
    (repository.top / ".benchmarks/decode/b.json").mkdir()
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert len(result.problems) == 2


def test_a_record_of_another_benchmark_is_a_problem(repository: GatedRepository) -> None:
    """A record in the folder of another benchmark passes for neither."""
    repository.measure().rename(repository.top / ".benchmarks/decode/moved.json")
    repository.rewrite(repository.top / ".benchmarks/decode/moved.json", benchmark_id="other")
    result = repository.result()
    assert result.outcome is GateOutcome.MISSING
    assert ".benchmarks/decode/moved.json is a record of 'other'" in result.problems


@pytest.mark.parametrize(("ahead_s", "outcome"), [(3_600, GateOutcome.PASS), (3_601, GateOutcome.FAIL)])
def test_a_record_from_the_future_is_a_problem(repository: GatedRepository, ahead_s: int, outcome: GateOutcome) -> None:
    """More than an hour ahead is a problem, so that nobody can stay the newest for ever."""
    repository.measure()
    repository.measure("2026-01-04", recorded_at=NOW + ahead_s)
    assert repository.outcome() is outcome


def test_duplicate_keys_are_unreadable(repository: GatedRepository) -> None:
    """A metric that stands twice is not read as whichever passes."""
    path = repository.measure()
    path.write_bytes(path.read_bytes().replace(b'"latency_ms": 12.5', b'"latency_ms": 99.0,\n"latency_ms": 12.5'))
    assert repository.outcome() is not GateOutcome.PASS


def test_the_newest_record_counts_and_a_name_breaks_ties(repository: GatedRepository) -> None:
    """Of two records of one second the one whose name is greater is judged."""
    repository.measure("2026-01-02")
    repository.measure("2026-01-02T030405Z", metrics={"latency_ms": 99.0})
    assert repository.outcome() is GateOutcome.FAIL
    repository.measure("2026-01-03")
    assert repository.outcome() is GateOutcome.PASS


def test_records_of_other_models_are_skipped(repository: GatedRepository) -> None:
    """A record of a model that is not the hardware's default neither passes nor fails."""
    repository.measure("2026-01-03", target_model="big", metrics={})
    assert repository.outcome() is GateOutcome.MISSING
    repository.measure()
    assert repository.outcome() is GateOutcome.PASS


# Entries and bounds.


def test_nothing_required_is_no_verdict(repository: GatedRepository) -> None:
    """A repository without entries does not pass."""
    repository.commit({".benchmarks/bounds.toml": ""})
    repository.git("branch", "-f", "base")
    report = repository.check()
    assert (report.exit_code, report.results) == (3, ())
    assert "nothing was checked" in str(report.reason)


def test_a_removed_entry_is_missing_unless_that_is_allowed(repository: GatedRepository) -> None:
    """An entry that the change removes is required still; allowed, nothing else is skipped by it."""
    repository.measure()
    repository.commit({".benchmarks/bounds.toml": bounds_text(benchmark_id="other")})
    results = {result.benchmark_id: result for result in repository.check().results}
    assert {name: result.outcome for name, result in results.items()} == {
        "decode": GateOutcome.MISSING,
        "other": GateOutcome.MISSING,
    }
    assert "removed from .benchmarks/bounds.toml" in results["decode"].problems[0]
    allowed = repository.check(allow_removed=["decode"])
    assert [result.benchmark_id for result in allowed.results] == ["other"]
    with pytest.raises(GateError, match="--allow-removed other"):
        repository.check(allow_removed=["other"])


def test_a_removed_bounds_file_removes_every_entry(repository: GatedRepository) -> None:
    """Without bounds.toml at HEAD the merge base's benchmarks are missing."""
    repository.measure()
    repository.git("rm", "-q", ".benchmarks/bounds.toml")
    repository.commit()
    assert repository.outcome() is GateOutcome.MISSING


def test_an_unmeasured_entry_never_passes(repository: GatedRepository) -> None:
    """An entry whose status is unmeasured fails, whatever its bounds say."""
    repository.commit({".benchmarks/bounds.toml": bounds_text().replace('"measured"', '"unmeasured"')})
    repository.measure()
    assert repository.outcome() is GateOutcome.FAIL


@pytest.mark.parametrize(
    "text",
    [
        bounds_text(bounds="{ latency_ms = { max = inf } }"),
        bounds_text(bounds="{ latency_ms = { max = nan } }"),
        bounds_text(bounds="{ latency_ms = { max = 0.0, noise = 0.1 } }"),
        bounds_text(bounds="{ latency_ms = { mx = 15.0 } }"),
        bounds_text(bounds="{ latency_ms = {} }"),
        bounds_text(bounds="{ latency_ms = { max = 15.0, noise = 1.0 } }"),
        bounds_text().replace('"measured"', '"mesured"'),
        bounds_text(key="unknown"),
        "not toml",
    ],
)
def test_bounds_that_cannot_be_used_are_an_error(repository: GatedRepository, text: str) -> None:
    """Infinity, noise on zero, a mistyped key or status, no bound, too much noise, unknown hardware: a usage error."""
    repository.measure()
    repository.commit({".benchmarks/bounds.toml": text})
    with pytest.raises(GateError, match=r"bounds\.toml"):
        repository.check()


def test_an_entry_without_bounds_fails(repository: GatedRepository) -> None:
    """An entry that bounds nothing passes nothing."""
    repository.commit({".benchmarks/bounds.toml": bounds_text(bounds="{}")})
    repository.measure()
    assert repository.outcome() is GateOutcome.FAIL


def test_a_benchmark_without_an_entry_has_no_baseline(repository: GatedRepository) -> None:
    """A benchmark that is asked for, or to which the change adds a record, and that has no entry does not pass."""
    repository.measure()
    assert repository.check("other").results[0].outcome is GateOutcome.NO_BASELINE
    repository.measure(benchmark_id="new")
    report = repository.check()
    assert [result.outcome for result in report.results] == [GateOutcome.PASS, GateOutcome.NO_BASELINE]
    assert report.exit_code == 3


def test_another_machine_is_not_comparable(repository: GatedRepository) -> None:
    """A record of hardware without an entry has an outcome and exit code of its own; the override is in the result."""
    repository.measure(hardware=Hardware(gpu="NVIDIA H200", driver="550", source="nvml"))
    report = repository.check()
    assert report.results[0].outcome is GateOutcome.NOT_COMPARABLE
    assert report.exit_code == 4
    allowed = repository.result(allow_other_hardware=True)
    assert allowed.outcome is GateOutcome.PASS
    assert "measured on 'h200', judged by the bounds of h100" in allowed.warnings[0]
    repository.measure(hardware=Hardware(gpu="NVIDIA H200", driver="550", source="nvml"), metrics={"latency_ms": 16.0})
    assert repository.outcome(allow_other_hardware=True) is GateOutcome.FAIL


def test_pins_hold_both_ways(repository: GatedRepository) -> None:
    """A pinned parameter must be there with its value; overrides are the pinned ones, no fewer and no more."""
    more = 'params = { batch = "8" }\nserve_overrides = { depth = "2" }'
    repository.commit({".benchmarks/bounds.toml": bounds_text(more=more)})
    repository.measure(serve_overrides={"depth": "2"})
    assert repository.outcome() is GateOutcome.PASS
    pins = {"batch": "8"}
    for params, overrides in (
        ({}, {"depth": "2"}),
        ({"batch": "9"}, {"depth": "2"}),
        (pins, {}),
        (pins, {"depth": "2", "more": "1"}),
    ):
        repository.measure(params=params, serve_overrides=overrides)
        assert repository.outcome() is GateOutcome.FAIL


def test_rules_must_be_committed_and_name_paths_that_exist(repository: GatedRepository) -> None:
    """Without rules, without performance paths, or with one that HEAD does not have, nothing is checked."""
    repository.measure()
    for text, message in (
        (CONFIG.replace('["src"]', '["src", "gone"]'), "'gone'"),
        (CONFIG.replace('["src"]', "[]"), "perf_paths is empty"),
        (CONFIG.replace('["src"]', '["../src"]'), "without `..`"),
        (CONFIG.replace("perf_paths", "perf_path"), "perf_path"),
    ):
        repository.commit({".benchmarks/config.toml": text})
        with pytest.raises(GateError, match=message):
            repository.check()
    repository.git("rm", "-q", ".benchmarks/config.toml")
    repository.commit()
    with pytest.raises(GateError, match="not committed"):
        repository.check()


def test_a_base_that_does_not_exist_is_a_usage_error(repository: GatedRepository) -> None:
    """A base that cannot be found is named; one without a common commit leaves everything unknown."""
    repository.measure()
    with pytest.raises(GateError, match="--base origin/HEAD"):
        repository.check(base="origin/HEAD")
    repository.git("switch", "-q", "--orphan", "alone")
    repository.commit({"x": "x"})
    repository.git("switch", "-q", "main")
    assert repository.check(base="alone").exit_code == 3


# All records that a change adds agree.


def test_an_added_record_that_does_not_stand_fails(repository: GatedRepository) -> None:
    """An added record that was invalidated since fails beside one that passes; an old one does not."""
    repository.measure("2026-01-01", recorded_at=TIME - 1)
    repository.commit({"src/a.py": "a = 2\n"})
    repository.measure()
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "2026-01-01.json, which this change adds, does not stand" in result.problems[0]
    repository.git("branch", "-f", "base")
    assert repository.outcome() is GateOutcome.PASS


def test_an_added_record_of_an_unknown_commit_is_unknown(repository: GatedRepository) -> None:
    """An older added record whose commit nobody knows leaves the outcome unknown."""
    repository.measure("2026-01-01", sha=_NO_SHA, recorded_at=TIME - 1)
    repository.measure()
    assert repository.outcome() is GateOutcome.UNKNOWN


# What is committed is what is measured.


def test_hidden_changes_are_dirty(repository: GatedRepository) -> None:
    """Untracked, ignored, assume-unchanged and skip-worktree performance files are dirty; tests are not."""
    repository.commit({".gitignore": "*.so\n__pycache__/\n", "src/b.py": "b\n", "src/c.py": "c\n"})
    git = Git.at(repository.top)
    rules = load_rules(git)
    repository.write({"src/tests/t.py": "other", "docs/a.md": "other", "src/fast.so": "", "src/new.py": ""})
    repository.write({"build.lock": "2\n"})
    repository.git("update-index", "--assume-unchanged", "src/b.py")
    repository.git("update-index", "--skip-worktree", "src/c.py")
    dirty = ["build.lock", "src/b.py", "src/c.py", "src/fast.so", "src/new.py"]
    assert dirty_performance_paths(git, rules) == dirty


def test_the_rules_do_not_excuse_a_record_in_the_working_tree_only(repository: GatedRepository) -> None:
    """Bounds count as they are committed: an edit in the working tree lets nothing pass."""
    repository.measure(metrics={"latency_ms": 99.0})
    repository.write({".benchmarks/bounds.toml": bounds_text(bounds="{ latency_ms = { max = 100.0 } }")})
    assert repository.outcome() is GateOutcome.FAIL


def test_a_submodule_under_a_performance_path_counts(repository: GatedRepository, tmp_path: Path) -> None:
    """Another commit of a submodule invalidates, whatever its settings say to ignore."""
    inner = Repository.create(tmp_path / "inner")
    inner.commit({"x.py": "1"})
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner.top), "src/lib")
    repository.git("config", "-f", ".gitmodules", "submodule.src/lib.ignore", "all")
    repository.commit()
    repository.measure()
    assert repository.outcome() is GateOutcome.PASS
    Repository(repository.top / "src/lib").commit({"x.py": "2"})
    repository.git("add", "-f", "src/lib")
    repository.commit()
    assert repository.outcome() is GateOutcome.MISSING


# Closures: what a change compiled to.


_TARGETS = """
[targets.kernel]
paths = ["src"]
hash = "python-ast"
"""


def test_a_comment_in_a_target_is_excused(repository: GatedRepository) -> None:
    """Where the syntax trees are the same a changed comment leaves the record standing; changed code does not."""
    repository.commit({".benchmarks/config.toml": CONFIG + _TARGETS})
    repository.measure_with_closure()
    repository.commit({"src/a.py": "# why\na  =  1\n"})
    assert repository.outcome() is GateOutcome.PASS
    repository.commit({"src/a.py": "a = 2\n"})
    result = repository.result()
    assert result.outcome is GateOutcome.MISSING
    assert "target 'kernel' compiles to something else" in result.problems[1]


@pytest.mark.parametrize("change", ["stray", "boundary", "unattested", "broken"])
def test_a_closure_excuses_no_more_than_it_says(repository: GatedRepository, change: str) -> None:
    """A change outside the targets, of a boundary, of a target not attested or not hashable is not excused."""
    config = CONFIG.replace('["src"]', '["src", "lib"]') + _TARGETS
    repository.commit({".benchmarks/config.toml": config, "lib/b.py": "b = 1\n"})
    if change == "unattested":
        repository.measure(closure={"other": {"hash": "0", "arch": "any", "compiler": "x"}})
    else:
        repository.measure_with_closure()
    files = {"stray": {"lib/b.py": "b  = 1\n"}, "boundary": {"build.lock": "2\n"}, "broken": {"src/a.py": "a = ("}}
    repository.commit({"src/a.py": "a  = 1\n"} | files.get(change, {}))
    assert repository.outcome() is GateOutcome.MISSING


def test_a_command_says_what_a_target_compiles_to(repository: GatedRepository) -> None:
    """A command's output is the target's identity; one that fails excuses nothing."""
    command = '[targets.kernel]\npaths = ["src"]\nhash = { command = ["wc", "-l", "src/a.py"] }\n'
    repository.commit({".benchmarks/config.toml": CONFIG + command})
    repository.measure_with_closure()
    repository.commit({"src/a.py": "a = 2\n"})
    assert repository.outcome() is GateOutcome.PASS
    repository.git("rm", "-q", "src/a.py")
    repository.commit()
    assert repository.outcome() is GateOutcome.MISSING


def test_a_record_of_a_deleted_branch_stands_by_its_content(repository: GatedRepository, tmp_path: Path) -> None:
    """Where a squashed branch's commits are gone a record stands by the objects it attests, with a loud warning."""
    repository.git("switch", "-q", "-c", "work")
    repository.commit({"src/a.py": "a = 2\n"})
    repository.measure_with_closure()
    repository.commit()
    repository.git("switch", "-q", "main")
    repository.git("merge", "-q", "--squash", "work")
    repository.commit()
    repository.git("clone", "-q", "--single-branch", "-b", "main", f"file://{repository.top}", str(tmp_path / "clone"))
    clone = GatedRepository(tmp_path / "clone")
    result = clone.result(base="origin/main")
    assert result.outcome is GateOutcome.PASS
    assert "stands only because it attests the same content" in result.warnings[0]
    clone.commit({"src/tests/t.py": "t = 2\n"})
    changed = clone.result(base="origin/main")
    assert changed.outcome is GateOutcome.UNKNOWN
    assert "not HEAD's at src" in changed.problems[0]


def test_a_partial_attestation_is_unknown(repository: GatedRepository) -> None:
    """A record of a commit that is gone must attest every performance path."""
    config = CONFIG.replace('["src"]', '["src", "docs"]')
    repository.commit({".benchmarks/config.toml": config})
    path = repository.measure_with_closure()
    record = type(a_record()).load(path)
    closure = {name: target for name, target in record.closure.items() if name != "tree:docs"}
    repository.measure(sha=_NO_SHA, closure=closure)
    result = repository.result()
    assert result.outcome is GateOutcome.UNKNOWN
    assert "does not attest docs" in result.problems[0]


# Git is asked once about each commit.


def test_git_is_asked_once_about_a_commit(repository: GatedRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records name a commit, there is one diff for it."""
    asked: list[str] = []
    real = Git.changed_paths

    def noted(git: Git, sha: str) -> tuple[str, ...]:
        asked.append(sha)
        return real(git, sha)

    monkeypatch.setattr(Git, "changed_paths", noted)
    git = Git.at(repository.top)
    standings = Standings(git, load_rules(git))
    older = repository.head
    newer = repository.commit({"src/a.py": "a = 2\n"})
    for sha in (older[:10], older[:12], newer[:10]):
        for benchmark_id in ("decode", "other"):
            standings.of(a_record(sha, benchmark_id=benchmark_id))
    assert asked == [older, newer]
