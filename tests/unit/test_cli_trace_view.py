from __future__ import annotations

from typing import TYPE_CHECKING

from support.cli import clean_environ, make_run, run_program

if TYPE_CHECKING:
    from pathlib import Path


def test_view_writes_into_the_run_directory(tmp_path: Path) -> None:
    """The page of a run stands in its directory, that of a trace file beside it; the path is printed."""
    root = tmp_path / "root"
    directory = make_run(root, "run-1", world_size=2)
    environ = clean_environ(root)
    answer = run_program(["trace", "view", "run-1", "--no-open"], environ)
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"{directory / 'view.html'} (")
    assert '"ranks":[0,1]' in (directory / "view.html").read_text("utf-8")
    one = run_program(["trace", "view", str(directory / "rank-00001.jsonl"), "--no-open"], environ)
    assert one.code == 0, one.err
    assert '"ranks":[1]' in (directory / "rank-00001.html").read_text("utf-8")


def test_view_opens_the_page_where_there_is_a_display(tmp_path: Path) -> None:
    """The user's browser gets the page's address, unless --no-open forbids it or there is no display."""
    root, opened = tmp_path / "root", tmp_path / "opened"
    make_run(root, "run-1")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    browser.chmod(0o755)
    page = tmp_path / "page.html"
    command = ["trace", "view", "run-1", "-o", str(page)]
    environ = {**clean_environ(root), "BROWSER": f"{browser} %s"}
    assert run_program(command, environ).code == 0
    assert opened.read_text() == f"{page.as_uri()}\n"
    assert run_program([*command, "--no-open"], environ).code == 0
    without = {name: value for name, value in environ.items() if name not in {"BROWSER", "DISPLAY", "WAYLAND_DISPLAY"}}
    assert run_program(command, without).code == 0
    assert opened.read_text() == f"{page.as_uri()}\n"


def test_view_refuses_what_is_no_run(tmp_path: Path) -> None:
    """An unknown run and a path that cannot be written are one line on stderr and exit code 2."""
    root = tmp_path / "root"
    make_run(root, "run-1")
    for arguments in (["nope"], ["run-1", "-o", str(tmp_path / "nowhere" / "page.html")]):
        answer = run_program(["trace", "view", *arguments, "--no-open"], clean_environ(root))
        assert answer.code == 2
        assert answer.err.count("\n") == 1
        assert answer.out == ""


def test_view_tells_of_a_rank_that_it_leaves_out(tmp_path: Path) -> None:
    """A rank's file without a first line is no part of the page: it is named, and the exit code is 1."""
    root = tmp_path / "root"
    directory = make_run(root, "run-1")
    (directory / "rank-00001.jsonl").touch()
    answer = run_program(["trace", "view", "run-1", "--no-open"], clean_environ(root))
    assert answer.code == 1
    assert "view.html (" in answer.out
    assert answer.err.startswith(f"runspan: left out: {directory / 'rank-00001.jsonl'}")
