"""Ed25519 signatures of records, in a file beside each: ``<record>.json.sig``.

What is signed is the file's bytes and then the record's ``git_sha``. The sidecar is the JSON object
``{"v":1,"key":…,"sig":…}``: the first 16 hex digits of the SHA-256 of the public key, and the signature in base64.
A checkout that made the line ends CRLF changes no value of a record, and leaves its signature valid.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import TYPE_CHECKING

from runspan._output_file import whole_file
from runspan.errors import GateError, MissingExtraError
from runspan.gate.canonical import parse
from runspan.gate.record import GateRecord
from runspan.gate.storing import read_limited, signature_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["check_signers", "public_key_text", "read_private_key", "sign", "signature_problem"]

_VERSION = 1
_KEY_ID_DIGITS = 16
_KEY_BYTES = 32


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read an Ed25519 private key, an unencrypted PEM file, as ``openssl genpkey -algorithm ed25519`` makes it.

    Raises:
        GateError: it is none.
        MissingExtraError: cryptography is not installed.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - an extra, and slow to load
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("Signing a record", "signing") from None
    advice = f"{path}: expected an Ed25519 private key in PEM without a password: `openssl genpkey -algorithm ed25519`"
    try:
        key = load_pem_private_key(read_limited(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise GateError(advice) from None  # the cause may quote the key
    if not isinstance(key, Ed25519PrivateKey):
        raise GateError(advice)
    return key


def public_key_text(key: Ed25519PrivateKey) -> str:
    """Return the public key as ``signers`` in the rules lists it."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode("ascii")


def sign(record: Path, key: Ed25519PrivateKey) -> Path:
    """Sign a record's file and return the path of its signature.

    Raises:
        GateError: it is no record, or the signature cannot be written.
    """
    signature = key.sign(_messages(record)[0])
    sidecar = {
        "v": _VERSION,
        "key": _key_id(key.public_key().public_bytes_raw()),
        "sig": base64.b64encode(signature).decode("ascii"),
    }
    path = signature_path(record)
    try:
        with whole_file(path) as target:
            target.write(json.dumps(sidecar, separators=(",", ":")).encode("ascii") + b"\n")
    except OSError as error:
        raise GateError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def check_signers(signers: Sequence[str]) -> dict[str, bytes]:
    """Return the public keys of ``signers`` by their ids.

    Raises:
        GateError: one is no Ed25519 public key in base64.
    """
    keys = {}
    for signer in signers:
        try:
            key = base64.b64decode(signer, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != _KEY_BYTES:
            raise GateError(f"signers names {signer!r}: expected the {_KEY_BYTES} bytes of an Ed25519 key in base64")
        keys[_key_id(key)] = key
    return keys


def signature_problem(record: Path, keys: dict[str, bytes]) -> str | None:
    """Say why nobody of these has signed a record as it stands; None when somebody has.

    Raises:
        MissingExtraError: cryptography is not installed.
    """
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra, and slow to load
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("Verifying a record's signature", "signing") from None
    path = signature_path(record)
    if not path.exists():
        return f"{record.name} is not signed"
    try:
        key_id, signature = _read_sidecar(path)
        messages = _messages(record)
    except GateError as error:
        return f"the signature cannot be checked: {error}"
    if key_id not in keys:
        return f"{record.name} is signed by key {key_id}, which is none of the signers'"
    for message in messages:
        try:
            Ed25519PublicKey.from_public_bytes(keys[key_id]).verify(signature, message)
        except (InvalidSignature, ValueError):
            continue
        return None
    return f"{record.name} is not what key {key_id} signed"


def _messages(record: Path) -> list[bytes]:
    """Return what is signed of a record: as its file stands, and as it stood before line ends were converted."""
    data = read_limited(record)
    try:
        sha = GateRecord.from_json(data).git_sha.encode("ascii")
        return [data + sha, data.replace(b"\r\n", b"\n") + sha]
    except GateError as error:
        raise GateError(f"{record}: {error}") from error


def _key_id(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()[:_KEY_ID_DIGITS]


def _read_sidecar(path: Path) -> tuple[str, bytes]:
    sidecar = parse(read_limited(path))
    if not isinstance(sidecar, dict) or sidecar.get("v") != _VERSION or isinstance(sidecar.get("v"), bool):
        raise GateError(f"{path.name}: expected a JSON object with v = {_VERSION}")
    key_id, signature = sidecar.get("key"), sidecar.get("sig")
    if not isinstance(key_id, str) or not isinstance(signature, str):
        raise GateError(f"{path.name}: expected the texts `key` and `sig`")
    try:
        return key_id, base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        raise GateError(f"{path.name}: sig is no base64") from None
