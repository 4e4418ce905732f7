from __future__ import annotations

import base64
import builtins
import json
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runspan.errors import GateError, MissingExtraError
from runspan.gate import GateOutcome
from runspan.gate.signing import check_signers, public_key_text, read_private_key, sign, signature_problem
from support.gate import a_record
from support.gated import CONFIG, GatedRepository, bounds_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def key() -> Ed25519PrivateKey:
    """Return the signer's key."""
    return Ed25519PrivateKey.generate()


@pytest.fixture
def repository(tmp_path: Path, key: Ed25519PrivateKey) -> GatedRepository:
    """Return a repository whose rules name a signer."""
    return GatedRepository.gated(tmp_path / "repository", config=_config(key))


def _config(*keys: Ed25519PrivateKey) -> str:
    return f"signers = {json.dumps([public_key_text(key) for key in keys])}\n{CONFIG}"


def test_a_signed_record_passes_and_an_unsigned_one_fails(repository: GatedRepository, key: Ed25519PrivateKey) -> None:
    """Where signers are named, a record needs the signature of one of them."""
    path = repository.measure()
    assert "is not signed" in repository.result().problems[0]
    assert repository.outcome() is GateOutcome.FAIL
    assert sign(path, key) == path.with_name("2026-01-02.json.sig")
    assert repository.outcome() is GateOutcome.PASS


def test_the_sidecar_has_its_fixed_form(repository: GatedRepository, key: Ed25519PrivateKey) -> None:
    """The sidecar is version, key id and signature over the file's bytes and the sha, which anybody can verify."""
    path = repository.measure()
    sidecar = json.loads(sign(path, key).read_bytes())
    assert list(sidecar) == ["v", "key", "sig"]
    assert sidecar["v"] == 1
    assert sidecar["key"] in check_signers([public_key_text(key)])
    message = path.read_bytes() + repository.head[:10].encode()
    key.public_key().verify(base64.b64decode(sidecar["sig"]), message)


def test_a_changed_record_or_another_signer_fails(repository: GatedRepository, key: Ed25519PrivateKey) -> None:
    """A byte changed after signing, a key that is no signer's, and another record's signature fail."""
    path = repository.measure()
    signature = sign(path, key)
    path.write_bytes(path.read_bytes() + b" ")
    assert "is not what key" in repository.result().problems[0]
    other = repository.measure("2026-01-03", params={"batch": "9"})
    sign(other, Ed25519PrivateKey.generate())
    assert "none of the signers'" in repository.result().problems[0]
    other.with_name(f"{other.name}.sig").write_bytes(signature.read_bytes())
    assert repository.outcome() is GateOutcome.FAIL


def test_a_checkout_with_other_line_ends_leaves_a_signature_valid(
    repository: GatedRepository, key: Ed25519PrivateKey, tmp_path: Path
) -> None:
    """CRLF line ends of a checkout are no change of a record; a changed value behind them is."""
    sign(repository.measure(), key)
    repository.commit()
    repository.git("clone", "-q", "-c", "core.autocrlf=true", str(repository.top), str(tmp_path / "crlf"))
    clone = GatedRepository(tmp_path / "crlf")
    path = clone.top / ".benchmarks/decode/2026-01-02.json"
    assert b"\r\n" in path.read_bytes()
    assert clone.outcome(base="origin/HEAD") is GateOutcome.PASS
    path.write_bytes(path.read_bytes().replace(b"12.5", b"11.5"))
    assert clone.outcome(base="origin/HEAD") is GateOutcome.FAIL


@pytest.mark.parametrize(
    "change",
    [{"v": 2}, {"v": True}, {"v": None}, {"sig": "!"}, {"sig": ""}, {"sig": 1}, {"key": None}, {"sig": "AAAA"}],
)
def test_an_ill_formed_sidecar_fails(
    repository: GatedRepository, key: Ed25519PrivateKey, change: dict[str, Any]
) -> None:
    """Another version, and a key or signature that is none, are no signature."""
    path = sign(repository.measure(), key)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    assert repository.outcome() is GateOutcome.FAIL


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"v":1,"v":1}', b"\xff"])
def test_a_sidecar_that_is_no_json_object_fails(repository: GatedRepository, content: bytes) -> None:
    """An empty or broken sidecar is no signature."""
    path = repository.measure()
    path.with_name(f"{path.name}.sig").write_bytes(content)
    assert repository.outcome() is GateOutcome.FAIL


@given(
    content=st.binary()
    | st.text().map(str.encode)
    | st.dictionaries(
        st.sampled_from(["v", "key", "sig"]), st.none() | st.booleans() | st.integers() | st.text() | st.just("00")
    ).map(lambda sidecar: json.dumps(sidecar).encode())
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_sidecar_but_the_signers_verifies(tmp_path: Path, key: Ed25519PrivateKey, content: bytes) -> None:
    """Whatever stands in a sidecar that the signer did not write is told as a problem, without a crash."""
    path = tmp_path / "record.json"
    path.write_bytes(a_record().to_json())
    path.with_name("record.json.sig").write_bytes(content)
    assert signature_problem(path, check_signers([public_key_text(key)])) is not None


def test_deleted_signers_are_required_still(repository: GatedRepository, key: Ed25519PrivateKey) -> None:
    """A change that deletes or replaces the signers needs the signature of those that the merge base names."""
    intruder = Ed25519PrivateKey.generate()
    for config in (CONFIG, _config(intruder)):
        repository.commit({".benchmarks/config.toml": config})
        path = repository.measure()
        assert repository.outcome() is GateOutcome.FAIL
        sign(path, intruder)
        assert repository.outcome() is GateOutcome.FAIL
        sign(path, key)
        assert repository.outcome() is GateOutcome.PASS


def test_each_shard_is_signed(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    """One unsigned shard of a group fails the whole."""
    more = 'aggregate = { latency_ms = "sum" }'
    repository = GatedRepository.gated(tmp_path / "repository", config=_config(key), bounds=bounds_text(more=more))
    paths = [
        repository.measure(str(index), metrics={"latency_ms": 1.0, "shard.index": index, "shard.count": 2})
        for index in range(2)
    ]
    sign(paths[0], key)
    assert repository.result().problems == (".benchmarks/decode/1.json: 1.json is not signed",)
    assert repository.outcome() is GateOutcome.FAIL
    sign(paths[1], key)
    assert repository.outcome() is GateOutcome.PASS


def test_the_first_signers_are_heads(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    """Where the merge base names nobody, those that the change names must sign."""
    repository = GatedRepository.gated(tmp_path / "repository")
    repository.commit({".benchmarks/config.toml": _config(key)})
    path = repository.measure()
    assert repository.outcome() is GateOutcome.FAIL
    sign(path, key)
    assert repository.outcome() is GateOutcome.PASS


@pytest.mark.parametrize("signer", ["", "!", "AAAA", base64.b64encode(bytes(33)).decode()])
def test_a_signer_that_is_no_key_is_an_error(signer: str) -> None:
    """What cannot be a public key is a configuration error that names it."""
    with pytest.raises(GateError, match="signers names"):
        check_signers([signer])


def test_a_private_key_is_an_unencrypted_ed25519_pem(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    """A key file is read as openssl writes it; anything else is refused with the command that makes one."""
    path = tmp_path / "key.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert public_key_text(read_private_key(path)) == public_key_text(key)
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content in (b"", b"no key", other):
        path.write_bytes(content)
        with pytest.raises(GateError, match="openssl genpkey -algorithm ed25519"):
            read_private_key(path)
    with pytest.raises(GateError, match="no such file"):
        read_private_key(tmp_path / "absent")


def test_what_is_no_record_is_not_signed(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    """Only records are signed."""
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(GateError, match=r"x\.json"):
        sign(path, key)
    assert signature_problem(path, {}) == "x.json is not signed"


def test_without_cryptography_the_extra_is_named(
    repository: GatedRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where signatures are required and cannot be checked, there is an error, not a pass."""
    repository.measure()
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"runspan\[signing\]"):
        repository.check()
    with pytest.raises(MissingExtraError, match=r"runspan\[signing\]"):
        read_private_key(tmp_path / "key.pem")
