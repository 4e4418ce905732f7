"""Generates the Python code of the .proto files: ``python tools/proto.py`` (or ``make proto``) writes it."""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

__all__ = ["generated_files"]

_REPOSITORY = Path(__file__).resolve().parents[1]
_PACKAGE = "runspan.rpc._pb"
_FOLDER = Path("src") / _PACKAGE.replace(".", "/")


def generated_files(repository: Path) -> dict[Path, str]:
    """Return what the committed code must be, by its path below the repository.

    Args:
        repository: where ``proto/`` is.

    Raises:
        ValueError: a .proto file does not compile; the compiler has said why on stderr.
    """
    sources = sorted((repository / "proto").rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi")]
        includes = [f"-I{repository / 'proto'}", f"-I{files('grpc_tools') / '_proto'}"]
        if protoc.main(["protoc", *includes, *outputs, *map(str, sources)]):
            raise ValueError("the .proto files do not compile")
        written = sorted(path for path in Path(folder).rglob("*.py*") if path.is_file())
        return {_FOLDER / path.name: _in_package(path.read_text("utf-8")) for path in written}


def _in_package(text: str) -> str:
    """Let generated modules import each other from where they are kept, which no option of the compiler does."""
    return text.replace("from runspan.v1 import ", f"from {_PACKAGE} import ")


def main() -> int:
    """Write the files."""
    for path, text in generated_files(_REPOSITORY).items():
        (_REPOSITORY / path).write_text(text, "utf-8")
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
