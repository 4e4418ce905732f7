"""``runspan gate verify``: is a record what one of the signers signed?"""

from __future__ import annotations

import typer

from runspan._git import Git, GitError
from runspan.cli._output import note, say
from runspan.cli.gate._common import GATE_EXIT_CODES, RecordsArgument, failing_closed, find_repository
from runspan.errors import GateError
from runspan.gate._results import NO_VERDICT
from runspan.gate.baseline import CONFIG_PATH
from runspan.gate.signing import check_signers, signature_problem
from runspan.gate.standing import load_rules
from runspan.gate.storing import read_limited

__all__ = ["register"]

_NOT_SIGNED = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", short_help="Verify signatures.", epilog=GATE_EXIT_CODES)(_verify)


def _verify(records: RecordsArgument) -> None:
    """Verify that records are what one of the signers at HEAD has signed. The exit code is 1 when one is not."""
    with failing_closed():
        try:
            keys = check_signers(load_rules(Git.at(find_repository())).signers)
        except GitError as error:
            note(f"git gives no answer: {error}")
            raise typer.Exit(NO_VERDICT) from error
        if not keys:
            raise GateError(f"{CONFIG_PATH} at HEAD names no signers: nothing can be verified")
        problems = 0
        for record in records:
            read_limited(record)  # one that is not there is a mistake of the caller's, not a bad signature
            problem = signature_problem(record, keys)
            problems += problem is not None
            say(f"{record}: {problem or 'signed'}")
    if problems:
        raise typer.Exit(_NOT_SIGNED)
