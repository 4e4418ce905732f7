"""Self-signed certificates, made by the openssl program."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["self_signed"]


def self_signed(folder: Path, name: str = "localhost", *, alternatives: str = "DNS:localhost") -> tuple[Path, Path]:
    """Make a certificate that is its own authority, and return the paths of it and of its key, PEM.

    Args:
        folder: gets the files.
        name: their stem, and the subject.
        alternatives: the names that it is valid for, as openssl writes them.
    """
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and is not installed")
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName={alternatives}", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
