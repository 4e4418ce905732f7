"""``runspan gate sign``: put a signature beside a record."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated

import typer

from runspan.cli._output import say
from runspan.cli.gate._common import GATE_EXIT_CODES, RecordsArgument, failing_closed
from runspan.gate.signing import public_key_text, read_private_key, sign

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sign", short_help="Sign records.", epilog=GATE_EXIT_CODES)(_sign)


def _sign(
    records: RecordsArgument,
    *,
    key: Annotated[
        Path,
        typer.Option(
            "--key",
            metavar="FILE",
            help="The Ed25519 private key, PEM: `openssl genpkey -algorithm ed25519 -out FILE`.",
        ),
    ],
) -> None:
    """Sign records: write RECORD.sig beside each, and print the public key as `signers` in the rules lists it."""
    with failing_closed():
        private_key = read_private_key(key)
        for record in records:
            say(f"wrote {sign(record, private_key)}")
        say(f"signer {public_key_text(private_key)}")
