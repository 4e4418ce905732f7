"""The stack's files: docker-compose.yml, collector-config/ and docs/scale.md, out of the installed package."""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from pathlib import Path

import msgspec

from runspan.errors import ConfigError

__all__ = ["StackExport", "dashboard_uids", "export_stack", "rule_groups", "stack_folder"]

_COMPOSE = "docker-compose.yml"
_CONFIG = "collector-config"
#: The configuration's comments and the alerts' runbooks send their reader there.
_SCALE = Path("docs", "scale.md")
_ENVIRONMENT = ".env"
_PASSWORD = "GF_SECURITY_ADMIN_PASSWORD"  # noqa: S105 - the variable's name
_PASSWORD_LINE = re.compile(rf"^{_PASSWORD}=.", re.MULTILINE)
_GROUP_NAME = re.compile(r"^  - name: (\S+)$", re.MULTILINE)
#: The services read them as users of their own.
_FILE_MODE, _FOLDER_MODE, _SECRET_MODE = 0o644, 0o755, 0o600


class StackExport(msgspec.Struct, frozen=True):
    """What an export wrote.

    Attributes:
        directory: where to, absolute.
        written: files that are new or changed now, relative to it.
        unchanged: how many files were there already, as they are shipped.
        password_generated: whether ``.env`` got a new password for Grafana's admin.
    """

    directory: str
    written: tuple[str, ...]
    unchanged: int
    password_generated: bool


def stack_folder() -> Path:
    """Return the folder that has the files: in the installed package, or a checkout's root.

    Raises:
        ConfigError: the installation lacks them.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_stack", package.parents[1]):
        if all((folder / name).exists() for name in (_COMPOSE, _CONFIG, _SCALE)):
            return folder
    raise ConfigError(f"the stack's files are not in {package / '_stack'}: pip install --force-reinstall runspan")


def rule_groups() -> frozenset[str]:
    """Return the names of the Prometheus rule groups.

    Raises:
        ConfigError: the installation lacks the files.
    """
    rules = (stack_folder() / _CONFIG / "prometheus" / "rules").glob("*.yml")
    return frozenset(name for path in rules for name in _GROUP_NAME.findall(path.read_text("utf-8")))


def dashboard_uids() -> frozenset[str]:
    """Return the uids of the Grafana dashboards.

    Raises:
        ConfigError: the installation lacks the files.
    """
    dashboards = (stack_folder() / _CONFIG / "grafana" / "dashboards").glob("*.json")
    return frozenset(json.loads(path.read_text("utf-8"))["uid"] for path in dashboards)


def export_stack(directory: Path, *, force: bool = False) -> StackExport:
    """Write the files into a folder, and a password for Grafana's admin into its ``.env`` where none stands there.

    Args:
        directory: the folder; created where it is missing.
        force: overwrite files that differ from the shipped ones; without it nothing at all is written then.

    Raises:
        ConfigError: a file would be overwritten, something cannot be written, or the installation lacks the files.
    """
    directory = Path(os.path.abspath(directory.expanduser()))  # noqa: PTH100 - keeps symbolic links
    source = stack_folder()
    shipped = {path.relative_to(source): path.read_bytes() for path in _files(source)}
    try:
        present = {name: (directory / name).read_bytes() for name in shipped if (directory / name).exists()}
        changed = sorted(str(name) for name, content in present.items() if content != shipped[name])
        if changed and not force:
            raise ConfigError(
                f"{directory} has files that differ from the shipped ones: {', '.join(changed)};"
                " choose another folder, or overwrite them with --force"
            )
        written = sorted(name for name, content in shipped.items() if present.get(name) != content)
        _make_folder(directory)
        for name in written:
            for folder in reversed(name.parents):
                _make_folder(directory / folder)
            _write(directory / name, shipped[name], _FILE_MODE)
        generated = _ensure_password(directory / _ENVIRONMENT)
    except OSError as error:
        where = directory if error.filename is None else error.filename
        raise ConfigError(f"the stack's files cannot be written to {where}: {error.strerror}") from error
    return StackExport(str(directory), tuple(map(str, written)), len(shipped) - len(written), generated)


def _files(source: Path) -> list[Path]:
    configuration = (path for path in sorted((source / _CONFIG).rglob("*")) if path.is_file())
    return [source / _COMPOSE, source / _SCALE, *configuration]


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(_FOLDER_MODE)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file so that it is there whole or not at all, whatever the umask is."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _ensure_password(path: Path) -> bool:
    """Add a generated password to the file of variables that Docker Compose reads; tell whether one was missing."""
    text = path.read_text("utf-8") if path.exists() else ""
    if _PASSWORD_LINE.search(text):
        return False
    separator = "" if not text or text.endswith("\n") else "\n"
    _write(path, f"{text}{separator}{_PASSWORD}={secrets.token_hex(16)}\n".encode(), _SECRET_MODE)
    return True
