from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from runspan import cli
from runspan.gate import FrameStatus, Hardware
from runspan.gate.standing import Standings
from support.cli import Answer
from support.gate import TIME
from support.gated import CONFIG, GatedRepository, bounds_text

if TYPE_CHECKING:
    from pathlib import Path


class GateCli:
    """Runs ``runspan gate`` in a repository, in this process."""

    def __init__(self, repository: GatedRepository, capsys: pytest.CaptureFixture[str]) -> None:
        self.repository = repository
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Answer:
        """Run a command."""
        self._capsys.readouterr()
        code = cli.main(["gate", *arguments])
        printed = self._capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    def check(self, *arguments: str) -> Answer:
        """Run ``check`` against the branch ``base``."""
        return self("check", "--base", "base", *arguments)


@pytest.fixture
def gate(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> GateCli:
    """Return the commands in a repository without records."""
    repository = GatedRepository.gated(tmp_path / "repository")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.chdir(repository.top)
    return GateCli(repository, capsys)


def test_exit_codes_tell_the_outcomes_apart(gate: GateCli) -> None:
    """0 passes, 1 fails, 3 is missing or unknown, 4 is another machine, 2 a configuration or usage error."""
    repository = gate.repository
    assert gate.check().code == 3
    repository.measure()
    assert gate.check().code == 0
    assert gate.check("absent").code == 3
    repository.measure(metrics={"latency_ms": 16.0})
    assert gate.check().code == 1
    repository.measure(sha="0" * 10)
    assert gate.check().code == 3
    repository.measure(hardware=Hardware(gpu="NVIDIA H200", driver="", source="nvml"))
    assert gate.check().code == 4
    assert gate.check("--allow-other-hardware").code == 0
    assert gate("check", "--base", "nowhere").code == 2
    assert gate.check("--format", "xml").code == 2
    assert gate.check("../x").code == 2
    repository.commit({".benchmarks/bounds.toml": "x"})
    answer = gate.check()
    assert answer.code == 2
    assert "bounds.toml" in answer.err


def test_of_several_outcomes_the_worst_code_counts(gate: GateCli) -> None:
    """A failure comes before no verdict, and that before another machine."""
    entry = bounds_text().split("\n", 2)[2]
    texts = [entry.replace("decode", name) for name in ("a", "b")]
    gate.repository.commit({".benchmarks/bounds.toml": bounds_text() + "".join(texts)})
    other = Hardware(gpu="NVIDIA H200", driver="", source="nvml")
    gate.repository.measure(hardware=other)
    gate.repository.measure(benchmark_id="a")
    assert gate.check().code == 3
    gate.repository.measure(benchmark_id="b")
    assert gate.check().code == 4
    gate.repository.measure(benchmark_id="b", verdict="FAIL")
    assert gate.check().code == 1
    assert gate.check("a").code == 0


def test_removed_benchmarks_are_allowed_by_name(gate: GateCli) -> None:
    """A removed entry is missing; named on the command line, the remaining benchmarks decide."""
    gate.repository.measure(benchmark_id="other")
    gate.repository.commit({".benchmarks/bounds.toml": bounds_text(benchmark_id="other")})
    answer = gate.check()
    assert answer.code == 3
    assert "--allow-removed decode if that is meant" in answer.out
    assert gate.check("--allow-removed", "decode").code == 0
    assert gate.check("--allow-removed", "other").code == 2


def test_it_is_found_from_a_folder_below(gate: GateCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The repository is the nearest with .benchmarks; without one there is an error that says what to do."""
    gate.repository.measure()
    monkeypatch.chdir(gate.repository.top / "src")
    assert gate.check().code == 0
    monkeypatch.chdir(tmp_path)
    answer = gate.check()
    assert answer.code == 2
    assert "no .benchmarks" in answer.err


def test_text_says_what_was_measured_and_what_is_missing(gate: GateCli) -> None:
    """Each benchmark has its outcome, its record, what was measured against which bound, and each problem."""
    gate.repository.measure()
    passed = gate.check().out
    assert "PASS            decode  .benchmarks/decode/2026-01-02.json (h100, " in passed
    assert "latency_ms 12.5, at most 15" in passed
    assert passed.endswith("Gate passed: 1 of 1 benchmark passed\n")
    gate.repository.commit({"src/a.py": "a = 2\n"})
    missing = gate.check().out
    assert missing.startswith("MISSING         decode\n")
    assert "! no record stands: run the benchmark at HEAD and commit its record" in missing
    assert "src/a.py changed since" in missing
    assert missing.endswith("Gate NOT passed: 0 of 1 benchmark passed\n")


def test_json_has_everything(gate: GateCli) -> None:
    """One document has the exit code, the results, and the override where one was used."""
    gate.repository.measure(hardware=Hardware(gpu="NVIDIA H200", driver="", source="nvml"))
    document = gate.check("--format", "json", "--allow-other-hardware").document
    assert (document["passed"], document["exit_code"], document["reason"]) == (True, 0, None)
    (result,) = document["results"]
    assert (result["benchmark_id"], result["outcome"], result["hardware_key"]) == ("decode", "PASS", "h200")
    assert result["metrics"] == [
        {"metric": "latency_ms", "value": 12.5, "bound": {"min": None, "max": 15.0, "noise": 0.0}, "holds": True}
    ]
    assert "--allow-other-hardware" in result["warnings"][0]
    assert document["head"] == gate.repository.head


def _suite(answer: Answer) -> ET.Element:
    suite = ET.fromstring(answer.out).find("testsuite")  # noqa: S314 - our own output
    assert suite is not None
    return suite


def test_junit_has_failures_and_errors(gate: GateCli) -> None:
    """A breach is a failure, no verdict an error, and where nothing was checked there is an error too."""
    gate.repository.measure()
    suite = _suite(gate.check("--format", "junit"))
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["1", "0", "0"]
    gate.repository.measure(metrics={"latency_ms": 16.0}, verdict_reason="\x00<&>")
    suite = _suite(gate.check("--format", "junit"))
    assert suite.get("failures") == "1"
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "FAIL"
    assert "latency_ms is 16" in str(failure.text)
    gate.repository.measure(sha="0" * 10)
    assert _suite(gate.check("--format", "junit")).find("testcase/error[@type='UNKNOWN']") is not None
    gate.repository.commit({".benchmarks/bounds.toml": ""})
    gate.repository.git("rm", "-rqf", "--cached", ".benchmarks/decode")
    gate.repository.git("branch", "-f", "base")
    for path in (gate.repository.top / ".benchmarks/decode").iterdir():
        path.unlink()
    suite = _suite(gate.check("--format", "junit"))
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["1", "0", "1"]


def test_markdown_is_a_table_that_names_cannot_break(gate: GateCli) -> None:
    """Names are escaped, so that no record writes markup into a pull request."""
    gate.repository.measure(metrics={"latency_ms": 16.0}, verdict="info", verdict_reason="<b>|`@all`\n# x")
    out = gate.check("--format", "markdown").out
    assert out.startswith("### Gate NOT passed: 0 of 1 benchmark passed\n")
    assert "| decode | FAIL | latency\\_ms 16, at most 15: BREACHED | .benchmarks/decode/2026-01-02.json |" in out
    assert "&lt;b>\\|\\`\\@all\\`\\\\n\\# x" in out


@pytest.mark.parametrize("form", ["text", "json", "junit", "markdown", "github"])
def test_changed_rules_are_shown_in_every_form(gate: GateCli, form: str) -> None:
    """Whoever looks at the result sees which paths no longer count."""
    gate.repository.commit({".benchmarks/config.toml": CONFIG.replace('["src/other"]', '["src"]')})
    gate.repository.measure()
    answer = gate.check("--format", form)
    assert answer.code == 0
    assert "excluded: decode=" in answer.out.replace("\\[", "[")


def test_github_annotations_are_escaped(gate: GateCli) -> None:
    """Each problem is an error annotation on its record; a reason cannot add a command of its own."""
    gate.repository.measure(verdict="info", verdict_reason="50%\n::warning::x")
    gate.repository.commit({".benchmarks/bounds.toml": bounds_text(bounds="{ latency_ms = { max = 14.0 } }")})
    lines = gate.check("--format", "github").out.splitlines()
    path = ".benchmarks/decode/2026-01-02.json"
    assert lines[0] == f"::error file={path},title=FAIL decode::{path}: the verdict is info: 50%25\\n::warning::x"
    assert lines[1].startswith(
        "::warning file=.benchmarks/bounds.toml,title=Bounds changed since the base::decode (h100"
    )
    assert lines[2] == "::error title=runspan gate::Gate NOT passed: 0 of 1 benchmark passed"
    assert len(lines) == 3


def test_a_crash_is_no_verdict(gate: GateCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresaw ends with 3, neither with a pass nor like a failed benchmark."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("broken")

    gate.repository.measure()
    monkeypatch.setattr(Standings, "of", broken)
    answer = gate.check()
    assert answer.code == 3
    assert "crashed: no verdict: ZeroDivisionError: broken" in answer.err
    assert answer.out == ""


def test_ctrl_c_is_no_verdict(gate: GateCli) -> None:
    """A check that is cancelled ends with 3."""
    gate.repository.commit(
        {
            ".benchmarks/config.toml": f"{CONFIG}[targets.slow]\npaths = ['src']\n"
            "hash = { command = ['sh', '-c', 'touch started; sleep 60'] }\n"
        }
    )
    gate.repository.measure(closure={"slow": {"hash": "0", "arch": "x", "compiler": "x"}})
    gate.repository.commit({"src/a.py": "a = 2\n"})
    command = [sys.executable, "-m", "runspan.cli", "gate", "check", "--base", "base"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (gate.repository.top / "started").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 3
    assert "cancelled: no verdict" in err


def test_show_lists_records_and_their_standing(gate: GateCli) -> None:
    """Records stand newest first with their standing; what is no record is named beside them."""
    gate.repository.measure("2026-01-02")
    gate.repository.commit({"src/a.py": "a = 2\n"})
    gate.repository.measure("2026-01-03", recorded_at=TIME + 1)
    (gate.repository.top / ".benchmarks/decode/broken.json").write_text("{")
    answer = gate("show", "--json")
    assert answer.code == 0
    assert [(row["record"], row["standing"]) for row in answer.document["records"]] == [
        (".benchmarks/decode/2026-01-03.json", "stands"),
        (".benchmarks/decode/2026-01-02.json", "invalidated"),
    ]
    assert "broken.json is no record" in answer.document["problems"][0]
    table = gate("show", "decode")
    assert "src/a.py changed since" in table.out
    assert "broken.json is no record" in table.err
    assert gate("show", "../x").code == 2


def test_show_works_without_git(gate: GateCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where git does not tell, records are listed with an unknown standing and the reason."""
    gate.repository.measure()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    (row,) = gate("show", "--json").document["records"]
    assert row["standing"] == "unknown"
    assert "dubious ownership" in row["reason"]


def test_explain_names_the_rule_for_each_path(gate: GateCli) -> None:
    """Each path that changed since is shown with what it does; then what is wrong with the record itself."""
    path = str(gate.repository.measure(verdict="info"))
    gate.repository.commit({"src/a.py": "a = 2\n", "docs/a.md": "x", "src/tests/t.py": "x", "src/other/o.py": "x"})
    answer = gate("explain", path, "--json")
    assert answer.code == 1
    assert {change["path"]: change["rule"] for change in answer.document["changed_paths"]} == {
        ".benchmarks/decode/2026-01-02.json": "outside the performance paths",
        "src/a.py": "performance",
        "docs/a.md": "outside the performance paths",
        "src/tests/t.py": "test",
        "src/other/o.py": "excluded",
    }
    assert answer.document["problems"] == ["the verdict is info: within bounds"]
    text = gate("explain", path).out
    assert "  counts     src/a.py (performance)\n" in text
    assert "  no effect  docs/a.md (outside the performance paths)\n" in text


def test_explain_has_the_exit_code_of_the_answer(gate: GateCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 when a record stands and nothing is wrong, 3 where git does not know, 2 for what is no record."""
    path = str(gate.repository.measure())
    assert gate("explain", path).code == 0
    failed = str(gate.repository.measure("2026-01-03", frame_status=FrameStatus.FAILED))
    assert gate("explain", failed).code == 1
    assert gate("explain", str(gate.repository.measure("2026-01-04", sha="0" * 10))).code == 3
    assert gate("explain", "absent.json").code == 2
    assert gate("explain", str(gate.repository.top / "src/a.py")).code == 2
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert gate("explain", path).code == 3


def test_sign_and_verify(gate: GateCli, tmp_path: Path) -> None:
    """A record signed on the command line passes where its signer is named; one changed afterwards does not verify."""
    key = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True, capture_output=True)
    path = str(gate.repository.measure())
    assert gate("verify", path).code == 2
    signed = gate("sign", path, "--key", str(key))
    assert signed.code == 0
    assert signed.out.startswith(f"wrote {path}.sig\nsigner ")
    signer = signed.out.split()[-1]
    gate.repository.commit({".benchmarks/config.toml": f"signers = {json.dumps([signer])}\n{CONFIG}"})
    path = str(gate.repository.measure())
    assert gate.check().code == 1
    assert gate("sign", path, "--key", str(key)).code == 0
    assert gate.check().code == 0
    assert gate("verify", path).out == f"{path}: signed\n"
    gate.repository.measure(params={"batch": "9"})
    assert gate("verify", path).code == 1
    assert gate("verify", "absent.json").code == 2
    assert gate("sign", path, "--key", path).code == 2


def test_help_states_the_exit_codes(gate: GateCli) -> None:
    """Each command's help says what its exit codes mean."""
    for command in ("check", "show", "explain", "sign", "verify"):
        answer = gate(command, "--help")
        assert answer.code == 0
        assert "4 not comparable" in " ".join(answer.out.split())
