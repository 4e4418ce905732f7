"""What is a secret, and the ``***`` that takes its place in everything that is recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BUILTIN_PATTERNS", "MASK", "Redactor"]

#: What a secret's value becomes.
MASK = "***"

#: Names of secrets, as words joined by ``_``.
BUILTIN_PATTERNS = (
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "credential",
    "authorization",
    "token",
    "access_tokens",
    "api_tokens",
    "auth_tokens",
    "authtoken",
    "accesstoken",
    "auth",
    "bearer",
    "cookie",
    "jwt",
    "api_key",
    "apikey",
    "access_key",
    "accesskey",
    "account_key",
    "deploy_key",
    "encryption_key",
    "license_key",
    "master_key",
    "private_key",
    "privatekey",
    "secret_key",
    "shared_key",
    "signing_key",
    "ssh_key",
    "subscription_key",
    "anthropic_key",
    "openai_key",
    "wandb_key",
    "connection_string",
)

#: Patterns that mean a secret only as the last word: ``hf_token`` does, ``token_type_ids`` and ``auth_backend`` do not.
_LAST_WORD_ONLY = frozenset({"token", "auth", "bearer", "cookie", "jwt", "pwd"})
#: ``pad_token``: with one of these in front, a token is a piece of text.
_TEXT_TOKEN_WORDS = frozenset({
    "additional", "audio", "begin", "bos", "by", "class", "cls", "decoder", "each", "end", "eod", "eos", "eot",
    "every", "extra", "first", "image", "last", "mask", "max", "min", "new", "newline", "next", "num", "pad",
    "per", "prefix", "prev", "prompt", "sep", "separator", "special", "start", "stop", "suffix", "text", "unk",
    "unknown", "video", "vocab", "word",
})  # fmt: skip
#: ``password_length``, ``secret_file``: the name of something about a secret.
_HARMLESS_ENDINGS = frozenset({
    "count", "dir", "dim", "enabled", "file", "length", "len", "limit", "num", "path", "policy", "rate",
    "ratio", "size",
})  # fmt: skip
#: ``use_auth``: with one of these in front, it is a switch.
_SWITCH_WORDS = frozenset({"disable", "enable", "no", "require", "skip", "use", "with"})
_WHOLE_NAMES_NO_SECRET = frozenset({"pwd", "oldpwd"})  # the shell's working directory
#: From this length on, a word that ends with a pattern matches too: ``PGPASSWORD``.
_MIN_SUFFIX_LENGTH = 6

_CAMEL_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
_PLAIN_WORDS = re.compile(r"[^\W\d_]+")

# The last form is a password with an unencoded slash: user:, something that is no port, and a later @.
_USERINFO = re.compile(r'://(?:[^\s/?#"<>]*|[^\s/?#@:"<>]+:(?!\d+(?:[/?#\s]|$))[^\s@"<>]{0,256})@')
_QUERY_PARAMETER = re.compile(r"(?<=[?&#;])([\w.~%-]{1,128})=([^&\s#\"'<>;]+)")
_SECRET_PARAMETERS = frozenset({"key", "sig", "signature", "code", "x-amz-signature", "x-amz-credential"})
_AUTHORIZATION = re.compile(
    r"(?i)\b((?:proxy-)?authorization\b[\"']?\s*[:=]\s*[\"']?)(?:(?:basic|bearer|digest|negotiate|token)\s+)?[^\s\"',;]+"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}")
_KNOWN_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"gh[opsur]_[A-Za-z0-9]{16,}"
    r"|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}"
    r"|hf_[A-Za-z0-9]{16,}"
    r"|sk-(?=[\w-]*\d)[\w-]{16,}"
    r"|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])"
    r"|AIza[\w-]{35}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|nvapi-[\w-]{16,}"
    r"|npm_[A-Za-z0-9]{30,}"
    r"|pypi-AgE[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+"
    r")"
)
_WEBHOOK = re.compile(r"(https://hooks\.slack\.com/|https://discord(?:app)?\.com/api/webhooks/)[^\s\"'<>]+")
_PRIVATE_KEY = re.compile(r"(?s)(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:.{0,16384}?(?=-----END)|[\s\w+/=\\:,-]*)")
#: ``name =``, ``"name":``, ``name: str =``, ``name ==``, ``--name ``: what a value follows.
_NAME_AND_SIGN = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*+)"
    r"(?:\\?[\"']?[ \t]*"
    r"(?:=>|:=|:[ \t]*(?:Optional\[)?(?:str|bytes|SecretStr|Any)\]?(?:[ \t]*\|[ \t]*None)?[ \t]*=|!?={1,3}|:)[ \t]*"
    r"|(?P<space>[ \t]++)(?![\s-]))"
)
_VALUE = re.compile(r"\\\"[^\"\\]*\\\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|\S+")
#: What stands behind a secret's name without being one: a constant or type of source code, or what is hidden already.
_NO_SECRET = re.compile(r"(?i)(?:none|null|true|false|str|bytes|\"\"|'')[,;)\]}]*|\*\*\*(?:[&#\"',;)\]}].*)?")
_MAX_DEPTH = 64


class Redactor:
    """Replaces secrets by ``***`` and leaves everything else as it is; nothing raises on strings and plain containers.

    A name is a secret's when the words of a pattern stand next to each other in it; words are told apart by separators
    and by camel case. Text is also searched for credentials that show by their form: in URLs, ``Authorization``
    headers, private keys, and the tokens of well-known services.

    Args:
        patterns: names of secrets, such as ``api_key``; the forms are searched for whatever they are.
    """

    def __init__(self, patterns: Iterable[str] = BUILTIN_PATTERNS) -> None:
        self._patterns = tuple(words for words in (_split(_PLAIN_WORDS, pattern) for pattern in patterns) if words)
        # Nearly every name fails this one search, which keeps large texts cheap.
        hints = {re.escape(max(words, key=len)) for words in self._patterns}
        self._hint = re.compile("|".join(sorted(hints)) if hints else r"(?!)")

    def is_secret_name(self, name: str) -> bool:
        """Whether a parameter, variable, header or option of this name holds a secret."""
        lowered = name.lower()
        if self._hint.search(lowered) is None or lowered in _WHOLE_NAMES_NO_SECRET:
            return False
        return any(self._has_secret(_split(splitter, name)) for splitter in (_CAMEL_WORDS, _PLAIN_WORDS))

    def _has_secret(self, words: list[str]) -> bool:
        if not words or words[-1] in _HARMLESS_ENDINGS:
            return False
        return any(_matches(pattern, words) for pattern in self._patterns)

    def redact_url(self, url: str) -> str:
        """Hide user name and password, and the values of secret query parameters."""
        return _QUERY_PARAMETER.sub(self._redact_parameter, _USERINFO.sub(f"://{MASK}@", url))

    def redact_argv(self, argv: Sequence[str]) -> list[str]:
        """Hide the values of secret options and variables (``--api-key X``, ``--api-key=X``, ``TOKEN=X``), URLs too."""
        redacted: list[str] = []
        value_follows = takes_several = False
        for argument in argv:
            is_option = argument.startswith("-")
            if value_follows and not is_option:
                redacted.append(MASK)
                value_follows = takes_several
                continue
            redacted.append(self._redact_argument(argument))
            value_follows = is_option and "=" not in argument and self.is_secret_name(argument)
            takes_several = argument.endswith(("s", "S"))
        return redacted

    def redact_mapping(self, mapping: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a copy without the values of secret names and the credentials in strings.

        Mappings, lists and tuples are looked through however deep; what contains itself becomes ``***``.
        """
        redacted: dict[Any, Any] = self._redact_any(mapping, ())
        return redacted

    def redact_text(self, text: str) -> str:
        """Hide credentials in free text: by their form, and where a secret's name is assigned a value."""
        return self._redact_assignments(self.redact_value(text))

    def redact_value(self, text: str) -> str:
        """Hide the credentials that show by their form; unlike ``redact_text``, ``token: x`` stays."""
        text = self.redact_url(text)
        text = _WEBHOOK.sub(rf"\g<1>{MASK}", text)
        text = _AUTHORIZATION.sub(rf"\g<1>{MASK}", text)
        text = _BEARER.sub(rf"\g<1>{MASK}", text)
        text = _PRIVATE_KEY.sub(rf"\g<1>{MASK}", text)
        return _KNOWN_SHAPES.sub(MASK, text)

    def _redact_argument(self, argument: str) -> str:
        name, equals, _ = argument.partition("=")
        if equals and "://" not in name and self.is_secret_name(name):
            return f"{name}={MASK}"
        return self.redact_text(argument)

    def _redact_parameter(self, match: re.Match[str]) -> str:
        name = unquote(match[1])
        secret = name.lower() in _SECRET_PARAMETERS or self.is_secret_name(name)
        return f"{match[1]}={MASK}" if secret else match[0]

    def _redact_assignments(self, text: str) -> str:
        pieces = []
        copied = position = 0
        while (match := _NAME_AND_SIGN.search(text, position)) is not None:
            position = match.end()
            is_assigned = match["space"] is None or match["name"].startswith("--")
            value = _VALUE.match(text, position) if is_assigned and self.is_secret_name(match["name"]) else None
            if value is not None and not _NO_SECRET.fullmatch(value[0]):
                quote = value[0][0] if value[0][0] in "\"'" else ""
                pieces += [text[copied:position], quote, MASK, quote]
                copied = position = value.end()
        return "".join([*pieces, text[copied:]])

    def _redact_any(self, value: Any, inside: tuple[int, ...]) -> Any:
        """Redact below a container; ``inside`` has the ids of those around it."""
        if isinstance(value, str):
            return self.redact_value(value)
        if not isinstance(value, Mapping | list | tuple):
            return value
        if id(value) in inside or len(inside) > _MAX_DEPTH:
            return MASK
        inside = (*inside, id(value))
        if isinstance(value, Mapping):
            return {key: self._redact_item(key, item, inside) for key, item in value.items()}
        items = [self._redact_any(item, inside) for item in value]
        return tuple(items) if isinstance(value, tuple) else items

    def _redact_item(self, key: Any, value: Any, inside: tuple[int, ...]) -> Any:
        says_nothing = value is None or isinstance(value, bool) or (isinstance(value, str) and not value)
        if isinstance(key, str) and not says_nothing and self.is_secret_name(key):
            return MASK
        return self._redact_any(value, inside)


def _split(splitter: re.Pattern[str], name: str) -> list[str]:
    return [word.lower() for word in splitter.findall(name)]


def _matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Whether the pattern's words stand next to each other in a name's words, where they mean a secret."""
    if len(pattern) == 1 and pattern[0] in _LAST_WORD_ONLY:
        harmless_in_front = {"token": _TEXT_TOKEN_WORDS, "auth": _SWITCH_WORDS}.get(pattern[0], frozenset())
        return words[-1] == pattern[0] and not (len(words) > 1 and words[-2] in harmless_in_front)
    size = len(pattern)
    for start in range(len(words) - size + 1):
        *head, last = words[start : start + size]
        if head == list(pattern[:-1]) and last in {pattern[-1], f"{pattern[-1]}s"}:
            return True
    return size == 1 and len(pattern[0]) >= _MIN_SUFFIX_LENGTH and any(word.endswith(pattern[0]) for word in words)
