"""`relay db`: the tables in the database of each context."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from relay.adapters.postgres import grants, migrations
from relay.adapters.postgres.migrations import MigrationStatus
from relay.cli.contexts import ContextOption, JsonOption, visit

app = typer.Typer(help="Create, compare and print the tables of each context's database.", no_args_is_help=True)


@app.command()
def upgrade(context: ContextOption = None) -> None:
    """Apply the migrations that are missing. Safe to repeat, and to start on several hosts at once."""
    answers, complete = visit(context, _upgrade)
    for name, applied in answers.items():
        print(f"{name}: applied {', '.join(applied)}" if applied else f"{name}: up to date")
    if not complete:
        raise typer.Exit(1)


@app.command()
def status(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Show which migration each database is at, and change nothing. Status 1 if one is pending."""
    answers, complete = visit(context, migrations.status)
    if as_json:
        print(json.dumps([{"context": name, **asdict(found)} for name, found in answers.items()], indent=2))
    else:
        for name, found in answers.items():
            print(_line(name, found))
    if not complete or any(found.pending for found in answers.values()):
        raise typer.Exit(1)


@app.command("sql")
def print_sql() -> None:
    """Print all migrations as SQL for an empty database: `relay db sql | psql …`."""
    print(migrations.sql(), end="")


@app.command()
def grant(
    relay: Annotated[list[str] | None, typer.Option("--relay", help="A role of the fleet.")] = None,
    application: Annotated[
        list[str] | None, typer.Option("--application", help="A role of a service that records events.")
    ] = None,
    context: ContextOption = None,
    as_sql: Annotated[bool, typer.Option("--sql", help="Print the SQL and do nothing.")] = False,
) -> None:
    """Give roles the rights they need on the tables, and revoke all others. Repeat it after each upgrade.

    Run it as the owner of the tables. The options may be repeated. Rights to connect and superuser rights are set
    where roles are made: see deploy/postgres/roles.sql.
    """
    if not (relay or application):
        raise typer.BadParameter("name a role: --relay ROLE, --application ROLE")
    roles = relay or [], application or []
    if as_sql:
        print("BEGIN;", *(f"{statement};" for statement in grants.statements(*roles)), "COMMIT;", sep="\n")
        return
    answers, complete = visit(context, lambda url: grants.grant(url, *roles))
    for name in answers:
        print(f"{name}: granted")
    if not complete:
        raise typer.Exit(1)


def _upgrade(url: str) -> tuple[str, ...]:
    pending = migrations.status(url).pending
    migrations.upgrade(url, waiting=lambda line: print(line, file=sys.stderr, flush=True))
    return pending


def _line(name: str, found: MigrationStatus) -> str:
    at = found.current or "no tables yet"
    if found.pending:
        return f"{name}: {at}, pending {', '.join(found.pending)}; run: relay db upgrade --context {name}"
    if found.current != found.head:
        return f"{name}: {at}, made by a newer release than this one ({found.head})"
    return f"{name}: {at}, up to date"
