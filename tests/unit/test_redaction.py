from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.redaction import BUILTIN_PATTERNS, MASK, Redactor

SECRET_NAMES = [
    "password", "db_password", "PGPASSWORD", "MYSQL_PWD", "passwd", "userPassword", "passphrase", "secret",
    "client_secret", "clientSecret", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "aws_session_token", "api_key",
    "--api-key", "apiKey", "APIKEY", "x-api-key", "OPENAI_API_KEY", "openai_key", "WANDB_API_KEY", "hf_token",
    "HFToken", "HF_TOKEN", "token", "auth_token", "use_auth_token", "accessToken", "access_tokens", "authorization",
    "Proxy-Authorization", "credentials", "GOOGLE_APPLICATION_CREDENTIALS", "private_key", "ssh_key", "cookie",
    "model.optimizer.api_key", "password2", "ToKeN", "connection_string", "basic_auth", "api_keys",
]  # fmt: skip
ORDINARY_NAMES = [
    "tokenizer", "num_tokens", "max_tokens", "tokens", "tokens_per_second", "pad_token", "eos_token", "mask_token_id",
    "token_type_ids", "token_dim", "loss_per_token", "special_token", "keypoints", "monkey", "key", "key_dim",
    "num_keys", "keyboard", "sort_key", "author", "authors", "authority", "use_auth", "pwd", "PWD", "OLDPWD",
    "secretary", "password_length", "password_policy", "secret_file", "lr", "weight_decay", "compass", "bypass",
    "passes", "class_token", "detokenize", "tokenization", "auth_backend", "cookies_dataset_size", "",
]  # fmt: skip
secrets = st.from_regex(r"[A-Za-z0-9]{12,40}", fullmatch=True)


@pytest.fixture
def redactor() -> Redactor:
    """Return one with the built-in patterns."""
    return Redactor()


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_secrets_name_is_known(name: str, redactor: Redactor) -> None:
    """Names are told by their words, whichever way these are joined."""
    assert redactor.is_secret_name(name)


@pytest.mark.parametrize("name", ORDINARY_NAMES)
def test_an_ordinary_name_that_contains_such_a_word_is_left_alone(name: str, redactor: Redactor) -> None:
    """A tokenizer is not a token."""
    assert not redactor.is_secret_name(name)


def test_patterns_can_be_added_and_replaced() -> None:
    """The patterns given are the names that count; forms are found whatever they are."""
    assert Redactor((*BUILTIN_PATTERNS, "patient_id")).is_secret_name("the_patient_id")
    none = Redactor(())
    assert not none.is_secret_name("password")
    assert none.redact_text("https://u:p@h") == f"https://{MASK}@h"


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("https://user:pw@github.com/o/r.git", "https://***@github.com/o/r.git"),
        ("https://ghp_0123456789@github.com/o/r", "https://***@github.com/o/r"),
        ("postgresql://u:p%40/w@db:5432/x", "postgresql://***@db:5432/x"),
        ("postgresql://u:p@w@db:5432/x", "postgresql://***@db:5432/x"),
        ("https://h/x?lr=1&api_key=abc&n=2", "https://h/x?lr=1&api_key=***&n=2"),
        ("https://s3/x?X-Amz-Signature=abc&X-Amz-Date=1", "https://s3/x?X-Amz-Signature=***&X-Amz-Date=1"),
        ("https://h/cb#access_token=abc", "https://h/cb#access_token=***"),
        ("https://h:8080/@scope/pkg", "https://h:8080/@scope/pkg"),
        ("git@github.com:o/r.git", "git@github.com:o/r.git"),
        ("https://h/x?max_tokens=5&tokenizer=bpe", "https://h/x?max_tokens=5&tokenizer=bpe"),
    ],
)
def test_credentials_in_a_url_are_hidden(url: str, redacted: str, redactor: Redactor) -> None:
    """User information and secret query parameters are hidden, the rest stays."""
    assert redactor.redact_url(url) == redacted
    assert redactor.redact_text(f"see {url} there") == f"see {redacted} there"


@pytest.mark.parametrize(
    ("argv", "redacted"),
    [
        (["t.py", "--api-key", "X", "--lr", "1"], ["t.py", "--api-key", "***", "--lr", "1"]),
        (["--api-key=X", "--lr=1"], ["--api-key=***", "--lr=1"]),
        (["TOKEN=X", "LR=1"], ["TOKEN=***", "LR=1"]),
        (["+model.api_key=X"], ["+model.api_key=***"]),
        (["--env=API_KEY=X"], ["--env=API_KEY=***"]),
        (["--header", "Authorization: Bearer X"], ["--header", "Authorization: ***"]),
        (["--config", '{"api_key": "X", "lr": 1}'], ["--config", '{"api_key": "***", "lr": 1}']),
        (["--tokens-file", "a", "--max-tokens", "5"], ["--tokens-file", "a", "--max-tokens", "5"]),
        (["--password", "--verbose"], ["--password", "--verbose"]),
        (["--api-keys", "X", "Y", "--lr", "1"], ["--api-keys", "***", "***", "--lr", "1"]),
        (["--use-auth", "t.py"], ["--use-auth", "t.py"]),
        (["--remote", "https://u:p@h/x?a=b"], ["--remote", "https://***@h/x?a=b"]),
        (["https://h/?api_key=X"], ["https://h/?api_key=***"]),
    ],
)
def test_arguments_are_redacted(argv: list[str], redacted: list[str], redactor: Redactor) -> None:
    """Values of secret options and variables are hidden, their neighbours stay."""
    assert redactor.redact_argv(argv) == redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("+API_KEY=abcd1234", "+API_KEY=***"),
        ('-password = "hunter2"', '-password = "***"'),
        ("password: str = 'hunter2'", "password: str = '***'"),
        ('"apiKey": "hunter2",', '"apiKey": "***",'),
        (r"{\"api_key\": \"hunter2\"}", r"{\"api_key\": ***}"),
        ("run --hf-token hunter2 --lr 3", "run --hf-token *** --lr 3"),
        ('if token == "hunter2":', 'if token == "***":'),
        ("curl -H 'Authorization: Bearer hunter2' x", "curl -H 'Authorization: ***' x"),
        ("env:API_KEY=hunter2", "env:API_KEY=***"),
        ("Bearer abcdefgh.ijkl", "Bearer ***"),
        ("password: Optional[str] = None", "password: Optional[str] = None"),
        ("tokenizer = load(x); max_tokens = 512", "tokenizer = load(x); max_tokens = 512"),
        ("a token is a word", "a token is a word"),
        ("task-1234567890-abcdefghijkl", "task-1234567890-abcdefghijkl"),
    ],
)
def test_free_text_is_redacted(text: str, redacted: str, redactor: Redactor) -> None:
    """Assignments to a secret's name are hidden in diffs, configuration, JSON and code; other text stays."""
    assert redactor.redact_text(text) == redacted


@pytest.mark.parametrize(
    "secret",
    [
        "ghp_" + "a1B2" * 9, "github_pat_" + "a1B2" * 9, "glpat-" + "a1B2" * 5, "hf_" + "aBcD" * 8,
        "sk-proj-" + "a1B2" * 9, "AKIA" + "A1B2" * 4, "AIza" + "a1B2c" * 7, "xoxb-12345678901-abcdef",
        "nvapi-" + "a1B2" * 9, "npm_" + "a1B2" * 9,
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", "sk_live_" + "a1B2" * 6,
    ],
)  # fmt: skip
def test_tokens_of_known_services_are_found_anywhere(secret: str, redactor: Redactor) -> None:
    """A token that shows by its form is hidden in text, parameters and arguments."""
    assert redactor.redact_text(f"x ({secret}) y") == "x (***) y"
    assert redactor.redact_mapping({"note": secret}) == {"note": MASK}
    assert redactor.redact_argv([f"--note={secret}"]) == ["--note=***"]


def test_private_keys_and_webhooks_are_hidden(redactor: Redactor) -> None:
    """A PEM block keeps its frame only, cut off or whole, and a chat webhook its host."""
    body = "\n+".join(["Proc-Type: 4,ENCRYPTED", "MIIEpAIBAAKCAQEA", "x" * 64])
    whole = f"+-----BEGIN RSA PRIVATE KEY-----\n+{body}\n+-----END RSA PRIVATE KEY-----\n+after"
    for text in (whole, whole[:-60]):
        redacted = redactor.redact_text(text)
        assert "MIIE" not in redacted
        assert "xxxx" not in redacted
    assert redactor.redact_text(whole).endswith("-----END RSA PRIVATE KEY-----\n+after")
    assert redactor.redact_text("https://hooks.slack.com/services/T0/B0/x") == "https://hooks.slack.com/***"


def test_mappings_are_redacted_however_deep(redactor: Redactor) -> None:
    """Secret names hide whole values at every level; types and ordinary values stay."""
    given_params: dict[Any, Any] = {
        "lr": 0.1,
        "api_key": "x",
        "auth_token": ["a", {"b": 1}],
        "use_auth_token": True,
        "password": None,
        "secret": "",
        "nested": [{"db_password": 5, "url": "https://u:p@h"}, ("token: x",)],
        3: "three",
    }
    assert redactor.redact_mapping(given_params) == {
        "lr": 0.1,
        "api_key": MASK,
        "auth_token": MASK,
        "use_auth_token": True,
        "password": None,
        "secret": "",
        "nested": [{"db_password": MASK, "url": f"https://{MASK}@h"}, ("token: x",)],
        3: "three",
    }


def test_a_mapping_that_contains_itself_ends(redactor: Redactor) -> None:
    """Cycles and bottomless nesting become the mask."""
    cycle: dict[str, Any] = {"a": 1}
    cycle["self"] = [cycle, cycle]
    assert redactor.redact_mapping(cycle) == {"a": 1, "self": [MASK, MASK]}
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"x": deep}
    assert MASK in str(redactor.redact_mapping(deep))


@given(st.sampled_from(SECRET_NAMES), secrets, st.lists(st.text(max_size=8), max_size=3))
def test_a_named_secret_never_stays(name: str, secret: str, around: list[str]) -> None:
    """Under a secret's name a value leaves no trace in arguments, mappings or text."""
    redactor = Redactor()
    option = f"--{name.lstrip('-')}"
    assert secret not in str(redactor.redact_argv([*around, f"{option}={secret}"]))
    assert secret not in str(redactor.redact_argv([option, secret, *around]))
    assert secret not in str(redactor.redact_mapping({"x": [{name: secret}]}))
    bare = name.lstrip("-")
    for text in (f"{bare}={secret}", f'"{bare}": "{secret}"', f"{bare}: {secret}", f"https://h/?{bare}={secret}&x=1"):
        assert secret not in redactor.redact_text(text)


@given(
    st.sampled_from(ORDINARY_NAMES),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("abc ", max_size=9),
)
def test_an_ordinary_parameter_is_left_alone(name: str, value: Any) -> None:
    """The same object stands under an ordinary name."""
    redacted = Redactor().redact_mapping({name: value})
    assert repr(redacted) == repr({name: value})


@given(st.text(), st.lists(st.text()))
def test_nothing_raises_on_any_text(text: str, argv: list[str]) -> None:
    """Whatever the text, something comes back, and redacting again changes nothing that matters."""
    redactor = Redactor()
    assert isinstance(redactor.redact_text(text), str)
    assert len(redactor.redact_argv(argv)) == len(argv)
    assert redactor.redact_mapping({text: text}).keys() == {text}


@pytest.mark.parametrize(
    "unit", ["a", "a=", "://", "://a:b/", "'", '"', "-----BEGIN PRIVATE KEY-----", "token=x ", "  ", "eyJ"]
)
def test_a_large_text_takes_time_in_proportion(unit: str, redactor: Redactor) -> None:
    """A diff of a mebibyte is redacted within seconds, however it is made up."""
    text = unit * (2**20 // len(unit))
    start = time.process_time()
    redactor.redact_text(text)
    assert time.process_time() - start < 10
