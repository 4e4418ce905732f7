"""Writes the generated files: ``PYTHONPATH=tools python -m dashboards``."""

from __future__ import annotations

import sys
from pathlib import Path

from dashboards.output import generated_files


def main() -> int:
    """Write each generated file below the repository, and name it."""
    repository = Path(__file__).resolve().parents[2]
    for path, text in generated_files(repository).items():
        target = repository / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
