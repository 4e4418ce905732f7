"""Ways to have a gate pass that must not, and honest work that must, in real repositories."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runspan._git import Git
from runspan.errors import GateError
from runspan.gate import GateOutcome, Hardware
from runspan.gate.closure import attest
from runspan.gate.standing import dirty_performance_paths, load_rules
from support.gate import TIME, a_record
from support.gated import CONFIG, GatedRepository, bounds_text
from support.repositories import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIG_PATH = ".benchmarks/config.toml"
_BOUNDS_PATH = ".benchmarks/bounds.toml"


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
    made = GatedRepository(tmp_path / "repository")
    made.git("reset", "-q", "--hard")  # the copies' times are not those of the index
    return made


def _dirty(repository: Repository) -> list[str]:
    git = Git.at(repository.top)
    return dirty_performance_paths(git, load_rules(git))


# What is measured is what is committed.


def test_a_filter_that_gives_the_committed_content_back_hides_nothing(repository: GatedRepository) -> None:
    """Where git takes a changed file for clean, because a filter says so, its bytes tell."""
    repository.git("config", "filter.hide.clean", "git show HEAD:%f")
    (repository.top / ".git/info").mkdir(exist_ok=True)
    (repository.top / ".git/info/attributes").write_text("*.py filter=hide\n")
    repository.write({"src/a.py": "a = 2  # faster\n"})
    repository.git("add", "src/a.py")
    assert repository.git("status", "--porcelain") == ""
    assert _dirty(repository) == ["src/a.py"]


def test_a_file_of_the_same_size_and_time_hides_nothing(repository: GatedRepository) -> None:
    """Content is read, also where the index has the file's size and time."""
    file = repository.top / "src/a.py"
    times = file.stat()
    file.write_text("a = 9\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert _dirty(repository) == ["src/a.py"]


def test_a_filter_in_a_submodule_hides_nothing(repository: GatedRepository, tmp_path: Path) -> None:
    """The files of submodules are read as well."""
    inner = Repository.create(tmp_path / "inner")
    inner.commit({"x.py": "1\n"})
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner.top), "src/lib")
    repository.commit()
    lib = Repository(repository.top / "src/lib")
    assert _dirty(repository) == []
    folder = Path(lib.git("rev-parse", "--absolute-git-dir"))
    (folder / "info").mkdir(exist_ok=True)
    (folder / "info/attributes").write_text("*.py filter=hide\n")
    lib.git("config", "filter.hide.clean", "git show HEAD:%f")
    lib.write({"x.py": "22\n"})
    lib.git("add", "x.py")
    assert _dirty(repository) == ["src/lib/x.py"]


def test_files_of_git_lfs_are_their_content(repository: GatedRepository) -> None:
    """A file that is committed as a pointer is clean with the content that it points to, and dirty with another."""
    pointer = (
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\nsize 3\n"
    )
    repository.commit({"src/weights.bin": pointer, ".gitattributes": "*.bin filter=lfs\n"})
    repository.git("config", "filter.lfs.clean", f"printf '{pointer}'")
    for content, dirty in ((b"foo", []), (b"bar", ["src/weights.bin"])):
        repository.write({"src/weights.bin": content})
        repository.git("add", "src/weights.bin")
        assert repository.git("status", "--porcelain") == ""
        assert _dirty(repository) == dirty


@pytest.mark.parametrize("length", [2**20 - 1, 2**20, 2**20 + 1])
def test_line_ends_of_a_checkout_are_no_change_in_large_files(repository: GatedRepository, length: int) -> None:
    """A file that is longer than one read is clean with CRLF, wherever its line ends fall, and dirty with more."""
    text = b"x" * (length - 1) + b"\n\nend\r"
    repository.commit({"src/long.txt": text, ".gitattributes": "*.txt text eol=crlf\n"})
    for content, dirty in ((text.replace(b"\n", b"\r\n"), []), (text.replace(b"\n", b"\r\r\n"), ["src/long.txt"])):
        repository.write({"src/long.txt": content})
        repository.git("add", "src/long.txt")
        assert _dirty(repository) == dirty


@pytest.mark.parametrize("hide", ["info/exclude", "core.excludesFile"])
def test_ignored_files_and_repositories_are_dirty(repository: GatedRepository, hide: str) -> None:
    """Whatever tells git to ignore them, extra files and repositories among the performance code are seen."""
    rules = repository.top / ".git/info/exclude"
    rules.parent.mkdir(exist_ok=True)
    if hide == "core.excludesFile":
        rules = repository.top / ".git/ignored"
        repository.git("config", hide, str(rules))
    rules.write_text("*.so\nevil\n")
    Repository.create(repository.top / "src/evil").commit({"m.py": "1"})
    repository.write({"src/fast.so": "", "src/half/.git": "gitdir: /nowhere\n", "src/half/m.py": "1"})
    assert _dirty(repository) == ["src/evil/", "src/fast.so", "src/half/m.py"]


def test_a_sparse_checkout_is_dirty(repository: GatedRepository) -> None:
    """Performance code that is not checked out is not what ran."""
    repository.git("sparse-checkout", "set", "--no-cone", "/*", "!/src/a.py")
    assert not (repository.top / "src/a.py").exists()
    assert _dirty(repository) == ["src/a.py"]


def test_a_file_monitor_that_sees_nothing_hides_nothing(repository: GatedRepository) -> None:
    """A program that tells git of no change is not asked."""
    monitor = repository.top / ".git/monitor"
    monitor.write_text("#!/bin/sh\nprintf 'token\\0'\n")
    monitor.chmod(0o755)
    repository.git("config", "core.fsmonitor", str(monitor))
    repository.git("update-index", "--fsmonitor")
    repository.git("status")
    repository.write({"src/a.py": "a = 3\n"})
    assert _dirty(repository) == ["src/a.py"]


def test_what_a_link_leads_to_is_measured(repository: GatedRepository) -> None:
    """Code behind links counts as performance code, through folders that are links too; tests' links do not."""
    repository.commit({"lib/x.py": "1\n", "far/y.py": "1\n", "data/z": "1\n"})
    (repository.top / "src/lib").symlink_to("../lib")
    (repository.top / "lib/far").symlink_to("../way/y.py")
    (repository.top / "way").symlink_to("far")
    (repository.top / "src/tests/data").symlink_to("../../data")
    repository.commit()
    repository.measure()
    repository.commit({"data/z": "2\n"})
    assert repository.outcome() is GateOutcome.PASS
    repository.write({"lib/x.py": "2\n"})
    assert _dirty(repository) == ["lib/x.py"]
    repository.git("checkout", "-q", "lib/x.py")
    repository.commit({"far/y.py": "2\n"})
    assert repository.outcome() is GateOutcome.MISSING


def test_a_performance_path_that_is_a_link_is_what_it_leads_to(repository: GatedRepository) -> None:
    """A link named as a performance path does not leave its target free."""
    (repository.top / "kernels").symlink_to("lib")
    repository.commit({"lib/x.py": "1\n", _CONFIG_PATH: CONFIG.replace('["src"]', '["src", "kernels"]')})
    repository.measure()
    repository.commit({"lib/x.py": "2\n"})
    assert repository.outcome() is GateOutcome.MISSING


@pytest.mark.parametrize("target", ["/tmp", "../../elsewhere", "../.git/x.py"])  # noqa: S108 - nothing is written there
def test_a_link_out_of_the_repository_is_dirty(repository: GatedRepository, target: str) -> None:
    """What no commit holds was not measured from a commit."""
    (repository.top / "src/out").symlink_to(target)
    repository.commit()
    assert _dirty(repository) == ["src/out"]


# What git is told to believe.


@pytest.mark.parametrize(
    "settings",
    [
        {"core.quotePath": "true", "diff.external": "true", "diff.renames": "copies", "diff.relative": "true"},
        {"diff.ignoreSubmodules": "all", "status.showUntrackedFiles": "no", "core.ignoreStat": "true"},
        {"core.ignoreCase": "true", "core.fileMode": "false", "core.symlinks": "false", "core.autocrlf": "input"},
    ],
)
def test_settings_hide_no_change(repository: GatedRepository, settings: dict[str, str]) -> None:
    """Whatever a repository's settings and attributes say, changed performance code invalidates and is dirty."""
    for name, value in settings.items():
        repository.git("config", name, value)
    repository.measure()
    attributes = "* -diff export-ignore text=auto linguist-generated\n*.py diff=none\n"
    repository.git("config", "diff.none.textconv", "true")
    repository.write({"src/a.py": "a = 5\n"})
    assert _dirty(repository) == ["src/a.py"]
    repository.commit({".gitattributes": attributes})
    assert repository.outcome() is GateOutcome.MISSING


@pytest.mark.parametrize(
    "variables",
    [
        {"GIT_DIR": "/nowhere", "GIT_WORK_TREE": "/", "GIT_INDEX_FILE": "/nowhere"},
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "diff.external", "GIT_CONFIG_VALUE_0": "true"},
        {"GIT_CONFIG_PARAMETERS": "'diff.ignoreSubmodules'='all'", "GIT_EXTERNAL_DIFF": "true"},
        {"GIT_LITERAL_PATHSPECS": "0", "GIT_ICASE_PATHSPECS": "1", "GIT_NO_REPLACE_OBJECTS": ""},
    ],
)
def test_variables_hide_no_change(repository: GatedRepository, variables: dict[str, str]) -> None:
    """Whatever git's variables say, the repository at hand is asked, and tells of its changes."""
    environ = {**os.environ, **variables}
    repository.measure()
    assert repository.outcome(environ=environ) is GateOutcome.PASS
    repository.commit({"src/a.py": "a = 5\n"})
    assert repository.outcome(environ=environ) is GateOutcome.MISSING


def test_replaced_objects_and_grafts_are_not_believed(repository: GatedRepository) -> None:
    """Neither refs that stand in for commits nor made-up parents change what a commit is or where the work began."""
    repository.measure()
    before = repository.head
    after = repository.commit({"src/a.py": "a = 5\n", _BOUNDS_PATH: bounds_text(benchmark_id="other")})
    repository.git("replace", before, after)
    results = {result.benchmark_id: result.outcome for result in repository.check().results}
    assert results == {"decode": GateOutcome.MISSING, "other": GateOutcome.MISSING}
    repository.git("replace", "-d", before)
    (repository.top / ".git/info").mkdir(exist_ok=True)
    (repository.top / ".git/info/grafts").write_text(f"{before} {after}\n")
    assert {result.benchmark_id for result in repository.check().results} == {"decode", "other"}


def test_a_commit_graph_that_lies_is_not_believed(repository: GatedRepository) -> None:
    """The file in which git keeps what commits say, for speed, is not asked what they say."""
    before = repository.head
    repository.measure()
    repository.commit({"src/a.py": "a = 5\n"})
    repository.git("commit-graph", "write", "--reachable")
    graph = repository.top / ".git/objects/info/commit-graph"
    then, now = (bytes.fromhex(repository.git("rev-parse", f"{commit}^{{tree}}")) for commit in (before, "HEAD"))
    graph.chmod(0o644)
    graph.write_bytes(graph.read_bytes().replace(then, now))
    assert repository.git("diff", "--name-only", before, "HEAD") == ""
    assert repository.outcome() is GateOutcome.MISSING


def test_letters_of_another_case_are_no_other_path(repository: GatedRepository) -> None:
    """Code in a folder that some file systems do not tell from a performance path counts."""
    repository.measure()
    repository.commit({"SRC/a.py": "a = 5\n"})
    assert repository.outcome() is GateOutcome.MISSING
    repository.measure("2026-01-03", recorded_at=TIME + 1)
    repository.commit({"Build.Lock": "2\n"})
    assert repository.outcome() is GateOutcome.MISSING


def test_a_file_mode_alone_invalidates(repository: GatedRepository) -> None:
    """Performance code that became executable, and one that became a link, have changed."""
    repository.measure()
    repository.git("update-index", "--chmod=+x", "src/a.py")
    repository.git("commit", "-q", "-m", "mode")
    assert repository.outcome() is GateOutcome.MISSING


# Records.


def _fail_and_pass(repository: GatedRepository) -> Path:
    """Commit an older pass and a newer failure, and return the failure."""
    repository.measure("2026-01-02")
    failed = repository.measure("2026-01-03", recorded_at=TIME + 1, verdict="FAIL")
    repository.commit()
    return failed


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("how", ["deleted", "older", "passing", "foreign", "moved"])
def test_a_committed_failure_is_not_lost(repository: GatedRepository, how: str, *, merged: bool) -> None:
    """A failure that is deleted, made older, made a pass or moved is judged as committed, at the base or at HEAD."""
    failed = _fail_and_pass(repository)
    if merged:
        repository.git("branch", "-f", "base")
    if how == "deleted":
        failed.unlink()
    elif how == "moved":
        nested = failed.parent / "old"
        nested.mkdir()
        failed.rename(nested / failed.name)
    elif how == "foreign":
        repository.rewrite(failed, benchmark_id="other")
    else:
        repository.rewrite(failed, **({"recorded_at": 0} if how == "older" else {"verdict": "PASS"}))
    if merged:
        repository.commit()
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "2026-01-03.json (deleted or altered since it was committed)" in " ".join(result.problems)


@pytest.mark.parametrize("how", ["assume-unchanged", "skip-worktree", "filter"])
def test_a_failure_that_git_does_not_see_change_is_not_lost(repository: GatedRepository, how: str) -> None:
    """Records that git was told not to look at, or to take for unchanged, are read all the same."""
    failed = _fail_and_pass(repository)
    if how == "filter":
        repository.git("config", "filter.hide.clean", "git show HEAD:%f")
        (repository.top / ".git/info").mkdir(exist_ok=True)
        (repository.top / ".git/info/attributes").write_text("*.json filter=hide\n")
        repository.rewrite(failed, recorded_at=0)
        repository.git("add", str(failed))
    else:
        repository.git("update-index", f"--{how}", str(failed))
        failed.unlink()
    assert repository.git("status", "--porcelain") == ""
    assert repository.outcome() is GateOutcome.FAIL


def test_records_in_a_repository_of_their_own_are_none(repository: GatedRepository, tmp_path: Path) -> None:
    """A submodule as a benchmark's folder has records that this repository's history does not tell of."""
    inner = Repository.create(tmp_path / "inner")
    inner.commit({"2026-01-02.json": a_record(repository.head[:10]).to_json()})
    add = ("submodule", "add", "-q", str(inner.top), ".benchmarks/decode")
    repository.git("-c", "protocol.file.allow=always", *add)
    repository.commit()
    result = repository.result()
    assert result.outcome is GateOutcome.MISSING
    assert "is a repository of its own" in " ".join(result.problems)


def test_an_archived_failure_is_no_lost_one(repository: GatedRepository) -> None:
    """Records in folders below a benchmark's are nobody's business, failed ones too."""
    text = a_record(repository.head[:10], verdict="FAIL", recorded_at=TIME + 5).to_json()
    repository.measure()
    repository.commit({".benchmarks/decode/archive/2025-01-01.json": text})
    repository.git("branch", "-f", "base")
    assert repository.outcome() is GateOutcome.PASS


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_record_behind_a_link_is_none(repository: GatedRepository, what: str) -> None:
    """A link as a record or as a benchmark's folder is a problem: what it leads to changes unseen."""
    path = repository.measure()
    linked = path if what == "file" else path.parent
    shutil.move(linked, repository.top / "docs" / linked.name)
    linked.symlink_to(os.path.relpath(repository.top / "docs" / linked.name, linked.parent))
    result = repository.result()
    assert result.outcome is GateOutcome.MISSING
    assert any("symbolic link" in problem for problem in result.problems)


@pytest.mark.parametrize(
    ("what", "outcome"),
    [("bom", GateOutcome.FAIL), ("huge", GateOutcome.FAIL), ("crlf", GateOutcome.PASS), ("utf-16", GateOutcome.FAIL)],
)
def test_the_bytes_of_a_record(repository: GatedRepository, what: str, outcome: GateOutcome) -> None:
    """A byte order mark, another encoding and too many bytes make no record; line ends of a checkout do."""
    path = repository.measure("2026-01-03")
    repository.measure()
    text = path.read_text()
    contents = {
        "bom": text.encode("utf-8-sig"),
        "huge": text.encode() + b" " * (16 * 2**20),
        "crlf": text.replace("\n", "\r\n").encode(),
        "utf-16": text.encode("utf-16"),
    }
    path.write_bytes(contents[what])
    assert repository.outcome() is outcome


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"schema": 1', '"schema": 1.0'),
        ('"schema": 1', '"schema": true'),
        ('"schema": 1', '"schema": "1"'),
        (f'"recorded_at": {TIME}', '"recorded_at": -1'),
        (f'"recorded_at": {TIME}', '"recorded_at": 1e9'),
        (f'"recorded_at": {TIME}', f'"recorded_at": {2**64}'),
        (f'"recorded_at": {TIME}', f'"recorded_at": {2**64 - 1}'),
        ("12.5", '"12.5"'),
        ("12.5", "true"),
        ("12.5", "1e999"),
        ("12.5", "-Infinity"),
        ("12.5", "1" + "0" * 400),
        ('"verdict": "PASS"', '"verdict": "pass"'),
        ('"verdict": "PASS"', '"verdict": true'),
        ('"frame_status": "Completed"', '"frame_status": "completed"'),
    ],
)
def test_values_that_are_none_make_no_record(repository: GatedRepository, old: str, new: str) -> None:
    """A field of another type or beyond its range is unreadable, not read as whatever passes."""
    path = repository.measure("2026-01-03")
    repository.measure()
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "2026-01-03.json" in result.problems[0]


def test_a_record_from_1970_is_the_oldest(repository: GatedRepository) -> None:
    """A record without a time stands behind every other one."""
    repository.measure("2026-01-03", recorded_at=0)
    assert repository.outcome() is GateOutcome.PASS
    repository.measure("2026-01-02", recorded_at=1, verdict="FAIL")
    assert repository.outcome() is GateOutcome.FAIL


def test_a_gone_commit_must_be_attested_with_its_boundaries(repository: GatedRepository) -> None:
    """A record of a commit that nobody has does not stand without the boundary files' objects."""
    git = Git.at(repository.top)
    closure = attest(git, load_rules(git))
    for attested, outcome in (
        (closure, GateOutcome.PASS),
        ({name: target for name, target in closure.items() if name != "tree:build.lock"}, GateOutcome.UNKNOWN),
    ):
        repository.store("2026-01-02", msgspec.structs.replace(a_record("0" * 10), closure=attested))
        assert repository.outcome() is outcome


# Bounds and rules.


def test_another_callable_is_measured_again(repository: GatedRepository) -> None:
    """A record is of what HEAD declares: another callable or command invalidates and is shown, a name does not."""
    repository.measure()
    repository.commit({_BOUNDS_PATH: bounds_text().replace('"bench:run"', '"bench:run"\nname = "D"')})
    report = repository.check()
    assert report.exit_code == 0
    assert report.bounds_changes == (
        "decode declaration: callable=bench:run repeats=1 warmups=0 → callable=bench:run name=D repeats=1 warmups=0",
    )
    repository.commit({_BOUNDS_PATH: bounds_text().replace("bench:run", "bench:nothing")})
    result = repository.result()
    assert result.outcome is GateOutcome.MISSING
    assert "declares another callable or command" in " ".join(result.problems)


@pytest.mark.parametrize(
    "declaration",
    [
        'callable = "speed.core:run"',
        'command = ["python", "speed/core.py"]',
        'command = ["python", "-m", "speed.core"]',
    ],
)
def test_a_benchmark_outside_the_performance_paths_is_told_of(repository: GatedRepository, declaration: str) -> None:
    """Where a benchmark's own file may change without a new measurement there is a warning; watched, there is none."""
    bounds = bounds_text().replace('callable = "bench:run"', declaration)
    repository.commit({"speed/core.py": "", _BOUNDS_PATH: bounds})
    repository.measure()
    result = repository.result()
    assert result.outcome is GateOutcome.PASS
    assert result.warnings == ("speed/core.py, which it is run from, is in no perf_paths: its changes are not seen",)
    repository.commit({_CONFIG_PATH: CONFIG.replace('["src"]', '["src", "speed"]')})
    repository.measure()
    assert repository.result().warnings == ()


def test_changed_rules_invalidate_and_are_shown(repository: GatedRepository) -> None:
    """A longer list of excluded or test paths invalidates what was measured before, and every format shows it."""
    repository.measure()
    repository.commit({_CONFIG_PATH: CONFIG.replace('["src/other"]', '["src"]')})
    report = repository.check()
    assert report.results[0].outcome is GateOutcome.MISSING
    assert report.rules_changes == ("excluded: decode=['src/other'] → decode=['src']",)
    repository.measure("2026-01-03", recorded_at=TIME + 1)
    (repository.top / ".benchmarks/decode/2026-01-02.json").unlink()
    assert repository.check().rules_changes == report.rules_changes


def test_an_entry_that_is_removed_for_one_machine_is_missed(repository: GatedRepository) -> None:
    """A failure there cannot be left behind by moving to other hardware, unless the removal is allowed by name."""
    repository.measure(metrics={"latency_ms": 99.0})
    repository.commit({_BOUNDS_PATH: bounds_text(key="h200", bounds="{ latency_ms = { max = 999.0 } }")})
    hardware = Hardware(gpu="NVIDIA H200", driver="550", source="nvml")
    repository.measure("2026-01-03", recorded_at=TIME + 1, hardware=hardware)
    result = repository.result()
    assert result.outcome is GateOutcome.MISSING
    assert "its entry for h100 (default) was removed from .benchmarks/bounds.toml" in result.problems[0]
    assert repository.outcome(allow_removed=["decode"]) is GateOutcome.PASS
    repository.measure("2026-01-04", recorded_at=TIME + 2, hardware=hardware, verdict="FAIL")
    assert repository.outcome(allow_removed=["decode"]) is GateOutcome.FAIL


@pytest.mark.parametrize(
    ("metrics", "outcome"),
    [({"drops": 0.0}, GateOutcome.PASS), ({"drops": 1.0}, GateOutcome.FAIL), ({}, GateOutcome.FAIL)],
)
def test_zero_metrics_are_zero_in_a_whole_too(
    repository: GatedRepository, metrics: dict[str, float], outcome: GateOutcome
) -> None:
    """What must be zero is held to it also where nothing is put together from shards."""
    repository.commit({_BOUNDS_PATH: bounds_text(more='zero = ["drops"]')})
    repository.measure(metrics={"latency_ms": 1.0, **metrics})
    assert repository.outcome() is outcome


def test_dismissed_signers_do_not_count(repository: GatedRepository) -> None:
    """Signers that the base has named since the work branched off must sign."""
    repository.git("switch", "-q", "base")
    signer = "A" * 43 + "="
    repository.commit({_CONFIG_PATH: f'signers = ["{signer}"]\n{CONFIG}'})
    repository.git("switch", "-q", "main")
    repository.measure()
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "is not signed" in result.problems[0]


@pytest.mark.parametrize("bound", ["-0.0", "5e-324", "-5e-324"])
def test_the_smallest_bounds_bound(repository: GatedRepository, bound: str) -> None:
    """Negative zero and the smallest numbers are bounds like others, and take no noise."""
    repository.commit({_BOUNDS_PATH: bounds_text(bounds=f"{{ latency_ms = {{ max = {bound} }} }}")})
    for value, outcome in ((12.5, GateOutcome.FAIL), (1e-300, GateOutcome.FAIL), (-1.0, GateOutcome.PASS)):
        repository.measure(metrics={"latency_ms": value})
        assert repository.outcome() is outcome
    noisy = bounds_text(bounds=f"{{ latency_ms = {{ max = {bound}, noise = 1.0 }} }}")
    repository.commit({_BOUNDS_PATH: noisy})
    with pytest.raises(GateError, match="has a noise of"):
        repository.check()


@pytest.mark.parametrize("bound", ["1" + "0" * 400, "true", '"15"', "1e400", "-inf", "nan", "[15]"])
def test_a_bound_that_is_no_number_is_an_error(repository: GatedRepository, bound: str) -> None:
    """What is no finite number is a configuration error, not a bound that holds."""
    repository.measure()
    repository.commit({_BOUNDS_PATH: bounds_text(bounds=f"{{ latency_ms = {{ max = {bound} }} }}")})
    with pytest.raises(GateError, match=r"bounds\.toml"):
        repository.check()


@pytest.mark.parametrize("name", ["", " ", "a b", "löss/träin", "a\\nb", "::error::x", "<b>", "a.b|c", "__proto__"])
def test_metric_names_are_taken_as_they_are(repository: GatedRepository, name: str) -> None:
    """A metric's name may be anything, and only the metric of exactly that name keeps its bound."""
    repository.commit({_BOUNDS_PATH: bounds_text(bounds=f'{{ "{name}" = {{ max = 1.0 }} }}')})
    metric = name.replace("\\n", "\n")
    for measured, outcome in (({metric: 1.0}, GateOutcome.PASS), ({f"{metric} ": 1.0}, GateOutcome.FAIL)):
        repository.measure(metrics=measured)
        assert repository.outcome() is outcome


@pytest.mark.parametrize("what", ["bounds", "config"])
def test_rules_and_bounds_behind_a_link_are_none(repository: GatedRepository, what: str) -> None:
    """Links as configuration files count as absent files, whatever they lead to."""
    repository.measure()
    path = repository.top / f".benchmarks/{what}.toml"
    shutil.move(path, repository.top / f"docs/{what}.toml")
    path.symlink_to(f"../docs/{what}.toml")
    repository.commit()
    if what == "bounds":
        assert repository.outcome() is GateOutcome.MISSING
    else:
        with pytest.raises(GateError, match="not committed"):
            repository.check()


def test_shards_with_other_counts_complete_no_group(repository: GatedRepository) -> None:
    """Shards of two and of three do not add up, nor does one index twice."""
    more = 'aggregate = { latency_ms = "sum" }'
    repository.commit({_BOUNDS_PATH: bounds_text(more=more)})

    def measure(name: str, index: float, count: float) -> None:
        repository.measure(name, metrics={"latency_ms": 1.0, "shard.index": index, "shard.count": count})

    for name, index, count in (("a", 0, 3), ("b", 1, 2), ("c", 2, 3), ("d", 0, 3), ("e", 1, 1e300), ("f", -0.0, 2.5)):
        measure(name, index, count)
        assert repository.outcome() is GateOutcome.MISSING
    measure("g", 1, 3)
    assert repository.outcome() is GateOutcome.PASS


# Honest work.


def _merge(repository: GatedRepository, how: str) -> None:
    repository.git("switch", "-q", "-c", "work")
    repository.commit({"src/a.py": "a = 2\n"})
    repository.measure()
    repository.commit()
    repository.git("switch", "-q", "base")
    repository.commit({"docs/a.md": "more\n"})
    repository.git("switch", "-q", "main")
    repository.git("merge", "-q", "--ff-only", "base")
    if how == "cherry-pick":
        repository.git("cherry-pick", "main..work")
    elif how == "squash":
        repository.git("merge", "-q", "--squash", "work")
        repository.commit()
    else:
        repository.git("merge", "-q", "--no-ff", "-m", "merge", "work")


@pytest.mark.parametrize("how", ["merge", "cherry-pick", "squash", "detached"])
def test_however_work_is_merged_its_record_stands(repository: GatedRepository, how: str) -> None:
    """A merge commit, cherry-picks, a squash, and a detached checkout of the merge all have the measured content."""
    _merge(repository, how)
    if how == "detached":  # as a pull request's merge ref is checked out
        repository.git("update-ref", "refs/pull/1/merge", "HEAD")
        repository.git("checkout", "-q", "--detach", "refs/pull/1/merge")
    assert repository.outcome() is GateOutcome.PASS
    repository.commit()
    repository.git("branch", "-f", "base")
    assert repository.outcome() is GateOutcome.PASS


def test_a_shallow_clone_that_is_deep_enough_passes(repository: GatedRepository, tmp_path: Path) -> None:
    """A clone needs the measured commit and the base, not the whole history."""
    for number in range(3):
        repository.commit({"docs/a.md": f"{number}\n"})
    repository.measure()
    repository.commit()
    repository.git("clone", "-q", "--depth=2", f"file://{repository.top}", str(tmp_path / "clone"))
    clone = GatedRepository(tmp_path / "clone")
    assert clone.git("rev-parse", "--is-shallow-repository") == "true"
    assert clone.outcome(base="origin/HEAD") is GateOutcome.PASS


def test_files_named_like_revisions_do_not_confuse_git(repository: GatedRepository) -> None:
    """A file called HEAD or like a commit's sha is a file."""
    repository.measure()
    repository.write({"HEAD": "x", repository.head: "x", "base": "x"})
    assert repository.outcome() is GateOutcome.PASS


def test_a_partial_clone_passes(repository: GatedRepository, tmp_path: Path) -> None:
    """Where contents are fetched when they are asked for, the answers are the same."""
    repository.measure()
    repository.commit()
    repository.git("config", "uploadpack.allowFilter", "true")
    url = f"file://{repository.top}"
    repository.git("clone", "-q", "--filter=blob:none", url, str(tmp_path / "clone"))
    clone = GatedRepository(tmp_path / "clone")
    assert clone.outcome(base="origin/HEAD") is GateOutcome.PASS
    assert _dirty(clone) == []


def test_a_repository_of_long_object_names_passes(tmp_path: Path) -> None:
    """SHA-256 as object format changes nothing."""
    (tmp_path / "repository").mkdir()
    plain = Repository(tmp_path / "repository")
    plain.git("init", "-q", "-b", "main", "--object-format=sha256")
    repository = GatedRepository.gated(plain.top)
    assert len(repository.head) == 64
    repository.measure()
    assert _dirty(repository) == []
    assert repository.outcome() is GateOutcome.PASS
    repository.write({"src/a.py": "a = 2\n"})
    assert _dirty(repository) == ["src/a.py"]


def test_a_gate_over_the_whole_repository_takes_its_own_records(repository: GatedRepository) -> None:
    """With `.` as performance path records and bounds are no change of what is measured; other files are."""
    repository.commit({_CONFIG_PATH: 'perf_paths = ["."]\n'})
    repository.measure()
    assert _dirty(repository) == []
    repository.commit({_BOUNDS_PATH: bounds_text(bounds="{ latency_ms = { max = 13.0 } }")})
    assert repository.outcome() is GateOutcome.PASS
    repository.commit({".benchmarks/run.py": "1\n"})
    assert repository.outcome() is GateOutcome.MISSING


def test_windows_line_ends_in_the_configuration_are_no_change(repository: GatedRepository) -> None:
    """Rules and bounds with CRLF say the same."""
    repository.measure()
    files: dict[str, Any] = {_CONFIG_PATH: CONFIG, _BOUNDS_PATH: bounds_text()}
    repository.commit({path: text.replace("\n", "\r\n") for path, text in files.items()})
    report = repository.check()
    assert (report.exit_code, report.bounds_changes, report.rules_changes) == (0, (), ())
