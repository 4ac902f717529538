"""The command `relay`. Errors end it with status 1 and one line: ``error CODE: message (hint)``."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

import typer

from relay.cli import (
    archive,
    backlog,
    chaos,
    config,
    db,
    demo,
    dev,
    dlq,
    handler,
    health,
    outbox,
    parked,
    reconcile,
    schedule,
    streams,
    tasks,
)
from relay.domain.errors import RelayError

app = typer.Typer(
    name="relay",
    help="Transactional messaging on PostgreSQL, NATS JetStream and Dramatiq.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("dev")(dev.dev)
app.command("chaos")(chaos.chaos)
app.command("health")(health.health)
app.command("config")(config.show)
app.command("backlog")(backlog.backlog)
app.command("reconcile")(reconcile.reconcile)
app.add_typer(db.app, name="db")
app.add_typer(streams.app, name="streams")
app.add_typer(handler.app, name="handler")
app.add_typer(dlq.app, name="dlq")
app.add_typer(outbox.app, name="outbox")
app.add_typer(parked.app, name="parked")
app.add_typer(schedule.app, name="schedule")
app.add_typer(tasks.app, name="tasks")
app.add_typer(archive.app, name="archive")


@app.command("version")
def print_version() -> None:
    """Print the installed version."""
    try:
        print(version("jetrelay"))
    except PackageNotFoundError:
        print("unknown: running from a source tree that is not installed")


def main() -> None:
    """Run the command; no traceback for errors that have a code."""
    try:
        app()
    except RelayError as error:
        print(error_line(error), file=sys.stderr)
        sys.exit(1)


def error_line(error: RelayError) -> str:
    """Write an error as people and scripts read it."""
    named = error.field and error.field not in error.message
    field = f"{error.field}: " if named else ""
    hint = f" ({error.hint})" if error.hint else ""
    return f"error {error.code}: {field}{error.message}{hint}"
