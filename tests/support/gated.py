"""Repositories with a gate, and records in them, as users have them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from runspan._git import Git
from runspan.gate._check import check
from runspan.gate.closure import attest
from runspan.gate.standing import load_rules
from support.gate import TIME, a_record
from support.repositories import Repository

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.gate import GateOutcome, GateRecord, GateResult
    from runspan.gate._results import GateReport

__all__ = ["CONFIG", "NOW", "GatedRepository", "bounds_text"]

#: A day after the records of :mod:`support.gate`.
NOW = TIME + 86_400
CONFIG = """\
perf_paths = ["src"]
test_paths = ["src/tests"]
boundary_paths = ["build.lock"]
[excluded]
decode = ["src/other"]
"""


def bounds_text(*, key: str = "h100", benchmark_id: str = "decode", bounds: str = "", more: str = "") -> str:
    """Return bounds.toml with one measured entry, whose latency is at most 15 unless told otherwise."""
    return f"""\
[benchmarks.{benchmark_id}]
callable = "bench:run"
[hardware.{key}.default.benchmarks.{benchmark_id}]
status = "measured"
bounds = {bounds or "{ latency_ms = { max = 15.0 } }"}
{more}
"""


class GatedRepository(Repository):
    """A repository with performance code, rules and bounds; its branch ``base`` is what the work is compared with."""

    @classmethod
    def gated(cls, top: Path, *, config: str = CONFIG, bounds: str | None = None) -> GatedRepository:
        """Make one with a commit that ``base`` points to."""
        repository = cls(cls.create(top).top)
        repository.commit(
            {
                "src/a.py": "a = 1\n",
                "src/other/o.py": "o = 1\n",
                "src/tests/t.py": "t = 1\n",
                "docs/a.md": "text\n",
                "build.lock": "1\n",
                ".benchmarks/config.toml": config,
                ".benchmarks/bounds.toml": bounds_text() if bounds is None else bounds,
            }
        )
        repository.git("branch", "base")
        return repository

    def measure(self, name: str = "2026-01-02", *, sha: str | None = None, **changes: Any) -> Path:
        """Write a record of HEAD, or of another commit, that passes unless told otherwise, and return its path."""
        record = a_record((sha or self.head)[:10], **changes)
        return self.store(name, record)

    def store(self, name: str, record: GateRecord) -> Path:
        """Write a record, whose metrics may be ones that no run has."""
        path = self.top / ".benchmarks" / record.benchmark_id / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record.to_json())
        return path

    def rewrite(self, path: Path, **fields: Any) -> None:
        """Change fields of a record's file that no record takes from Python."""
        path.write_text(json.dumps(json.loads(path.read_bytes()) | fields))

    def measure_with_closure(self, name: str = "2026-01-02", **changes: Any) -> Path:
        """Write a record that attests what its targets compile to and the objects at its performance paths."""
        git = Git.at(self.top)
        record = a_record(self.head[:10], **changes)
        return self.store(name, msgspec.structs.replace(record, closure=attest(git, load_rules(git))))

    def check(self, *benchmark_ids: str, **options: Any) -> GateReport:
        """Check it against ``base``, a day after the record was made."""
        settings: dict[str, Any] = {"base": "base", "now_unix_s": NOW} | options
        return check(self.top, benchmark_ids, **settings)

    def result(self, **options: Any) -> GateResult:
        """Check it and return the one result."""
        report = self.check(**options)
        assert len(report.results) == 1, report
        return report.results[0]

    def outcome(self, **options: Any) -> GateOutcome:
        """Check it and return the one outcome."""
        return self.result(**options).outcome
