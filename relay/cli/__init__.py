"""The command `relay`. Errors end it with status 1 and one line: ``error CODE: message (hint)``."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from relay.domain.errors import MissingExtraError, RelayError

#: Modules of this package that hold one command of their name, and modules that hold a group of commands, in the
#: order of the help. The chaos commands are in another package, which only a checkout has.
_CHAOS: Final = "chaos"
_COMMANDS: Final = (
    *("init", "demo", "dev", _CHAOS, "health", "doctor", "alarms", "explain", "find", "config", "backlog"),
    *("reconcile", "retention", "top", "ops", "forget", "export"),
)
_GROUPS: Final = (
    *(
        "db",
        "streams",
        "fleet",
        "handler",
        "dlq",
        "outbox",
        "inbox",
        "parked",
        "schedule",
        "tasks",
        "subscriptions",
        "controls",
        "queues",
    ),
    *("archive", "audit", "schema", "personal", "context"),
)
#: Under which heading the help has a part.
_PANELS: Final = {
    "Begin": ("init", "demo", "dev", _CHAOS, "handler", "schema", "config", "version"),
    "What is going on": (
        "health",
        "doctor",
        "alarms",
        "top",
        "backlog",
        "explain",
        "find",
        "fleet",
        "audit",
        "ops",
    ),
    "Events, messages, tasks": (
        "outbox",
        "inbox",
        "dlq",
        "parked",
        "tasks",
        "schedule",
        "subscriptions",
        "controls",
        "queues",
    ),
    "Personal data": ("forget", "export", "personal"),
    "Databases, streams, archives": ("context", "db", "streams", "reconcile", "archive", "retention"),
}
_PANEL_OF: Final = {
    **dict.fromkeys((*_COMMANDS, *_GROUPS), "What is going on"),
    **{name: panel for panel, names in _PANELS.items() for name in names},
}
#: Errors of writing to a file or pipe that the shell has opened. We expect no other error without a path.
_OUTPUT_FAILS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE}


def create_app(names: Iterable[str] = (*_COMMANDS, *_GROUPS)) -> typer.Typer:
    """Build the command with the given parts. Only these are loaded."""
    app = typer.Typer(
        name="relay",
        help="Transactional messaging on PostgreSQL, NATS JetStream and Dramatiq.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in names:
        if name == _CHAOS and not _has_chaos():
            continue
        module = import_module("chaos.command" if name == _CHAOS else f"relay.cli.{name}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name, rich_help_panel=_PANEL_OF[name])
        else:
            app.command(name, rich_help_panel=_PANEL_OF[name])(getattr(module, name))
    app.command("version", rich_help_panel=_PANEL_OF["version"])(print_version)
    return app


def _print_and_end(asked: bool) -> None:
    if asked:
        print_version()
        raise typer.Exit


def _options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_and_end, is_eager=True, help="Print the version, and end."),
    ] = False,
) -> None:
    """Hold the options of the bare command."""


def print_version(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Print the installed version."""
    try:
        found = version("jetrelay")
    except PackageNotFoundError:
        found = "unknown: running from a source tree that is not installed"
    print(json.dumps({"version": found}) if as_json else found)


def main() -> None:
    """Run the command. Errors that have a code print no traceback."""
    # A pool logs each of its attempts to connect. The command says once what it could not read.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    try:
        try:
            create_app(_asked_for(sys.argv[1:]))()
        finally:
            sys.stdout.flush()  # at the end of the process it is too late to say what is wrong
    except RelayError as error:
        print(error_line(error), file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.filename is None and error.errno not in _OUTPUT_FAILS:
            raise
        if error.errno != errno.EPIPE:  # the reader has gone
            unusable = error.filename or "standard output"
            print(f"error FILE_UNUSABLE: {unusable}: {error.strerror}", file=sys.stderr)
        if error.filename is None:
            # Discard what is still to be written, or the end of the process would fail as well.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _asked_for(arguments: Sequence[str]) -> Iterable[str]:
    """The part that the first argument names. All parts if it names none, as the help then lists them."""
    named = arguments[:1]
    if named == [_CHAOS] and not _has_chaos():
        raise MissingExtraError("the package has no chaos runs", hint="in a checkout: pip install -e '.[chaos]'")
    if named in (["--version"], ["version"]):
        return ()
    return named if named and named[0] in (*_COMMANDS, *_GROUPS) else (*_COMMANDS, *_GROUPS)


def _has_chaos() -> bool:
    """Whether our package `chaos` is beside this one, and not another module of that name."""
    found, ours = find_spec(_CHAOS), Path(__file__).parents[2] / _CHAOS / "__init__.py"
    return found is not None and found.origin == str(ours)


def error_line(error: RelayError) -> str:
    """The line for an error, readable for people and scripts."""
    named = error.field and error.field not in error.message
    field = f"{error.field}: " if named else ""
    hint = f" ({error.hint})" if error.hint else ""
    return f"error {error.code}: {field}{error.message}{hint}"
