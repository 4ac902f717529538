"""The command `relay`. Errors end it with status 1 and one line: ``error CODE: message (hint)``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import typer

from relay.domain.errors import RelayError

#: Modules of this package with a command of their name in them, and those with a group of commands, in the order
#: in which the help lists them.
_COMMANDS: Final = ("demo", "dev", "chaos", "health", "config", "backlog", "reconcile")
_GROUPS: Final = ("db", "streams", "handler", "dlq", "outbox", "parked", "schedule", "tasks", "archive")


def create_app(names: Iterable[str] = (*_COMMANDS, *_GROUPS)) -> typer.Typer:
    """Build the command with its parts, or some of them: only those are loaded."""
    app = typer.Typer(
        name="relay",
        help="Transactional messaging on PostgreSQL, NATS JetStream and Dramatiq.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for name in names:
        module = import_module(f"relay.cli.{name}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    app.command("version")(print_version)
    return app


def print_version() -> None:
    """Print the installed version."""
    try:
        print(version("jetrelay"))
    except PackageNotFoundError:
        print("unknown: running from a source tree that is not installed")


def main() -> None:
    """Run the command; no traceback for errors that have a code."""
    try:
        create_app(_asked_for(sys.argv[1:]))()
    except RelayError as error:
        print(error_line(error), file=sys.stderr)
        sys.exit(1)


def _asked_for(arguments: Sequence[str]) -> Iterable[str]:
    """The part that the first argument names; all parts if it names none: they are listed then."""
    named = arguments[:1]
    return named if named and named[0] in (*_COMMANDS, *_GROUPS) else (*_COMMANDS, *_GROUPS)


def error_line(error: RelayError) -> str:
    """Write an error as people and scripts read it."""
    named = error.field and error.field not in error.message
    field = f"{error.field}: " if named else ""
    hint = f" ({error.hint})" if error.hint else ""
    return f"error {error.code}: {field}{error.message}{hint}"
