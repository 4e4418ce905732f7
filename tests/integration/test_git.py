from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from runspan._git import Git, GitError
from runspan._run.environment import git_state
from runspan.redaction import Redactor
from support.repositories import Repository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a repository with one commit."""
    made = Repository.create(tmp_path / "main")
    made.commit({"src/a.py": "a = 1\n", "src/b.py": "b = 1\n", "docs/a.md": "text\n", ".gitignore": "*.log\n"})
    return made


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


def test_the_commit_of_a_plain_repository(repository: Repository) -> None:
    """The full and the short sha of what is checked out; a full history is not shallow."""
    git = Git.at(repository.top)
    assert git.commit("HEAD") == repository.head
    assert git.short_sha() == repository.head[:10]
    assert git.commit_of_sha(repository.head[:7]) == repository.head
    assert not git.is_shallow()


def test_a_linked_worktree_has_its_own_commit(repository: Repository, tmp_path: Path) -> None:
    """In a linked worktree, whose .git is a file, the sha is the one checked out there."""
    repository.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    side = Repository(tmp_path / "side")
    sha = side.commit({"src/a.py": "a = 2\n"})
    assert Git.at(side.top).commit("HEAD") == sha != repository.head


def test_a_submodule_has_its_own_commit(repository: Repository, tmp_path: Path) -> None:
    """In a submodule the sha is the submodule's, never its parent's; where it is not checked out there is none."""
    inner = Repository.create(tmp_path / "inner")
    sha = inner.commit({"code.py": "x = 1\n"})
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner.top), "lib")
    repository.commit()
    assert Git.at(repository.top / "lib").commit("HEAD") == sha
    (repository.top / "lib/new.py").write_text("")
    assert Git.at(repository.top).dirty_paths(["lib"]) == ["lib", "lib/new.py"]
    repository.git("submodule", "deinit", "-q", "-f", "lib")
    with pytest.raises(GitError, match="not the top of a git repository"):
        Git.at(repository.top / "lib")
    assert Git.at(repository.top).dirty_paths(["lib"]) == ["lib"]


def test_a_submodule_in_a_submodule_has_its_own_commit(repository: Repository, tmp_path: Path) -> None:
    """Two levels down the sha is still the innermost's, and a change there is dirty at the top."""
    inner, middle = Repository.create(tmp_path / "inner"), Repository.create(tmp_path / "middle")
    sha = inner.commit({"code.py": "x = 1\n", "kept.py": "y = 1\n"})
    add = ("-c", "protocol.file.allow=always", "submodule", "add", "-q")
    middle.git(*add, str(inner.top), "inner")
    middle.commit()
    repository.git(*add, str(middle.top), "middle")
    repository.git("-c", "protocol.file.allow=always", "submodule", "update", "-q", "--init", "--recursive")
    repository.commit()
    innermost = Repository(repository.top / "middle/inner")
    assert Git.at(innermost.top).commit("HEAD") == sha
    assert Git.at(repository.top).dirty_paths(["middle"]) == []
    innermost.git("update-index", "--assume-unchanged", "kept.py")
    assert Git.at(repository.top).dirty_paths(["middle"]) == ["middle/inner/kept.py"]


def test_a_repository_around_the_folder_is_not_asked(repository: Repository) -> None:
    """A folder inside a working tree is not its top, also where its own .git is empty or points nowhere."""
    folder = repository.top / "src"
    with pytest.raises(GitError, match="not the top of a git repository: the one around it is"):
        Git.at(folder)
    (folder / ".git").mkdir()
    with pytest.raises(GitError, match="not the top"):
        Git.at(folder)
    (folder / ".git").rmdir()
    (folder / ".git").write_text("gitdir: /nowhere\n")
    with pytest.raises(GitError, match="not a git repository"):
        Git.at(folder)


def test_no_repository_is_an_error_with_a_reason(tmp_path: Path) -> None:
    """Where there is no repository, the reason says so."""
    with pytest.raises(GitError, match="not a git repository"):
        Git.at(tmp_path)


def test_an_inherited_git_dir_of_another_repository_does_not_lie(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a .git of its own the folder's repository is asked, whatever GIT_DIR and GIT_WORK_TREE say."""
    other = Repository.create(tmp_path / "other")
    other.commit({"b": "b"})
    monkeypatch.setenv("GIT_DIR", str(other.top / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.top))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.top / ".git/index"))
    assert Git.at(repository.top).commit("HEAD") == repository.head
    monkeypatch.chdir(repository.top / "src")
    assert git_state(Redactor()).sha == repository.head


def test_git_dir_counts_where_it_names_the_folder(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a .git in the folder GIT_DIR is believed only together with a GIT_WORK_TREE that is the folder."""
    sha = repository.head
    shutil.move(repository.top / ".git", tmp_path / "elsewhere.git")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere.git"))
    with pytest.raises(GitError, match="GIT_WORK_TREE does not name"):
        Git.at(repository.top)
    monkeypatch.setenv("GIT_WORK_TREE", str(repository.top))
    assert Git.at(repository.top).commit("HEAD") == sha


def test_a_working_tree_that_is_set_elsewhere_is_not_believed(repository: Repository, tmp_path: Path) -> None:
    """A repository whose settings name another folder as its working tree says nothing about this one."""
    repository.git("config", "core.worktree", str(tmp_path))
    with pytest.raises(GitError, match="is not the top of a git repository"):
        Git.at(repository.top)


def test_a_clone_of_depth_one_has_one_commit_and_says_so(repository: Repository, tmp_path: Path) -> None:
    """Its own sha is right, an older one is not there, and it is called shallow."""
    older = repository.head
    newer = repository.commit({"src/a.py": "a = 2\n"})
    repository.git("clone", "-q", "--depth=1", f"file://{repository.top}", str(tmp_path / "clone"))
    git = Git.at(tmp_path / "clone")
    assert git.commit("HEAD") == newer
    assert git.commit_of_sha(older) is None
    assert git.is_shallow()


def test_another_owners_repository_is_unknown(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dubious ownership is git's refusal with git's reason; a training run goes on without a sha."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(GitError, match="dubious ownership"):
        Git.at(repository.top)
    monkeypatch.chdir(repository.top)
    assert git_state(Redactor()).sha is None


def test_without_git_there_is_a_reason(repository: Repository, tmp_path: Path) -> None:
    """Where no git is installed, the reason says so."""
    with pytest.raises(GitError, match="there is no git on PATH"):
        Git.at(repository.top, {"PATH": str(tmp_path)})


def test_a_repository_without_a_commit_has_no_sha(tmp_path: Path) -> None:
    """Before the first commit there is no sha, only a reason."""
    with pytest.raises(GitError, match="'HEAD' is no commit of"):
        Git.at(Repository.create(tmp_path / "empty").top).commit("HEAD")


@pytest.mark.parametrize("name", ["beef" * 2, "abcdef0", "HEAD", "main", "--all"])
def test_a_name_is_no_sha(repository: Repository, name: str) -> None:
    """HEAD, a branch, an option, and a branch that is named like a sha are not taken for one."""
    if name.isalnum() and name.islower() and name != "main":
        repository.git("branch", name)
    assert Git.at(repository.top).commit_of_sha(name) is None


def test_every_way_to_differ_from_the_commit_is_dirty(repository: Repository) -> None:
    """Changed, staged, untracked, ignored, assume-unchanged and skip-worktree files count; clean ones do not."""
    git = Git.at(repository.top)
    assert git.dirty_paths(["src"]) == []
    repository.commit({"src/c.py": "c\n", "src/d.py": "d\n", "src/clean.py": "clean\n"})
    repository.write({"src/a.py": "a = 2\n", "src/new.py": "", "src/out/x.log": "", "docs/a.md": "other\n"})
    repository.write({"src/b.py": "b = 2\n"})
    repository.git("add", "src/b.py")
    repository.git("update-index", "--assume-unchanged", "src/c.py")
    repository.git("update-index", "--skip-worktree", "src/d.py")
    repository.git("config", "status.showUntrackedFiles", "no")
    hidden = ["src/a.py", "src/b.py", "src/c.py", "src/d.py", "src/new.py", "src/out/x.log"]
    assert git.dirty_paths(["src"]) == hidden
    assert git.dirty_paths(["."]) == ["docs/a.md", *hidden]


@pytest.mark.parametrize(
    "name", ['a "quoted" name.py', "ünïcødé ☃.py", "tab\tand\nnewline.py", "*.py", ":(top)x", "\udcff.py"]
)
def test_file_names_are_taken_as_they_are(repository: Repository, name: str) -> None:
    """Names that git would quote, patterns and bytes that are no UTF-8 come back unchanged."""
    git = Git.at(repository.top)
    before = repository.head
    (repository.top / "src" / name).write_text("x")
    assert git.dirty_paths([f"src/{name}"]) == [f"src/{name}"]
    repository.commit()
    assert git.changed_paths(before) == (f"src/{name}",)
    assert git.show("HEAD", f"src/{name}") == b"x"
    assert list(git.files("HEAD", [f"src/{name}"])) == [f"src/{name}"]


def test_a_renamed_file_is_two_changed_paths(repository: Repository) -> None:
    """A rename shows the old path too, whatever the user's settings of diff are."""
    before = repository.head
    repository.git("config", "diff.renames", "copies")
    repository.git("config", "diff.external", "true")
    repository.git("mv", "src/a.py", "docs/a.py")
    repository.commit()
    assert Git.at(repository.top).changed_paths(before) == ("docs/a.py", "src/a.py")


def test_a_replaced_object_is_not_believed(repository: Repository) -> None:
    """A ref that stands in for a commit changes no difference."""
    before = repository.head
    after = repository.commit({"src/a.py": "a = 2\n"})
    repository.git("replace", before, after)
    assert Git.at(repository.top).changed_paths(before) == ("src/a.py",)


def test_content_and_object_ids_of_a_commit(repository: Repository) -> None:
    """Files are read as they were committed; a folder, a symbolic link and what is absent are no files."""
    git = Git.at(repository.top)
    (repository.top / "link").symlink_to("src/a.py")
    repository.commit()
    repository.write({"src/a.py": "changed since\n"})
    assert git.show("HEAD", "src/a.py") == b"a = 1\n"
    assert [git.show("HEAD", path) for path in ("src", "link", "absent")] == [None, None, None]
    entries = git.entries("HEAD", ["src", "src/a.py", ".", "absent"])
    assert entries["src"].oid == repository.git("rev-parse", "HEAD:src")
    assert entries["src/a.py"].oid == repository.git("rev-parse", "HEAD:src/a.py")
    assert entries["."].oid == repository.git("rev-parse", "HEAD^{tree}")
    assert "absent" not in entries


def test_many_files_are_read_at_once(repository: Repository) -> None:
    """Contents come back by their ids, empty ones and such with line ends too; what is no file is an error."""
    repository.commit({"x/empty": "", "x/lines": "\n1\n\n", "x/binary": bytes(range(256)), "x/same": ""})
    git = Git.at(repository.top)
    files = git.files("HEAD", ["x"])
    contents = git.blobs(entry.oid for entry in files.values())
    read = {path: contents[entry.oid] for path, entry in files.items()}
    assert read == {"x/empty": b"", "x/lines": b"\n1\n\n", "x/binary": bytes(range(256)), "x/same": b""}
    assert git.blobs([]) == {}
    for oid in ("0" * 40, git.entries("HEAD", ["x"])["x"].oid):
        with pytest.raises(GitError, match="is no file"):
            git.blob(oid)


def test_the_common_commit_of_two_branches(repository: Repository) -> None:
    """The merge base is found; branches without one are an error."""
    base = repository.head
    repository.git("switch", "-q", "-c", "side")
    repository.commit({"side": "1"})
    git = Git.at(repository.top)
    assert git.merge_base("main", "side") == base
    repository.git("switch", "-q", "--orphan", "alone")
    repository.commit({"alone": "1"})
    with pytest.raises(GitError, match="no common commit"):
        git.merge_base("main", "alone")
