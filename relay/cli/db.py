"""`relay db`: the tables in the database of each context."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from relay.adapters.postgres import grants, microdao, migrations
from relay.adapters.postgres.pool import Source
from relay.adapters.postgres.revisions import MigrationStatus
from relay.adapters.postgres.search_indexes import IndexChanges, arrange
from relay.adapters.postgres.sequences import mend_sequences
from relay.cli.options import ContextOption, JsonOption, ask, print_json, visiting, visiting_contexts
from relay.cli.progress import bar
from relay.domain.errors import of_context
from relay.settings import ContextSettings, load_settings

SchemaOption = Annotated[
    str | None, typer.Option("--context", help="For the schema of this context, with its MicroDAO view.")
]
app = typer.Typer(help="Create, compare and print the tables of each context's database.", no_args_is_help=True)


@app.command()
def upgrade(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Apply the migrations that are missing. Safe to repeat, and to start on several hosts at once."""
    with visiting_contexts(context, _upgrade) as answers:
        if as_json:
            answers.print_json(
                {"context": name, "applied": applied, "view": view} for name, (applied, view) in answers.items()
            )
            return
        for name, (applied, view) in answers.items():
            what = f"applied {', '.join(applied)}" if applied else "up to date"
            print(f"{name}: {what}; view {view}" if view else f"{name}: {what}")


@app.command()
def status(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Show which migration each database is at, and change nothing. Status 1 if one is pending."""
    with visiting(context, migrations.status) as answers:
        if as_json:
            print_json([{"context": name, **asdict(found)} for name, found in answers.items()])
        else:
            for name, found in answers.items():
                print(_line(name, found))
    if any(found.pending for found in answers.values()):
        raise typer.Exit(1)


@app.command()
def repair(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Set sequences forward that stand below the numbers of their tables, as upkeep does every 30 s."""
    with visiting(context, lambda url: ask(url, _mend)) as answers:
        if as_json:
            answers.print_json({"context": name, "mended": mended} for name, mended in answers.items())
            return
        for name, mended in answers.items():
            what = f"set forward {', '.join(mended)}" if mended else "nothing to mend"
            print(f"{name}: {what}")


async def _mend(source: Source) -> Sequence[str]:
    return await mend_sequences("", source, lambda _: None)


@app.command("index")
def make_indexes(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Make the indexes for the fields that `search` lists, and drop those of others. Writers go on meanwhile."""
    with visiting_contexts(context, _index) as answers:
        if as_json:
            answers.print_json({"context": name, **asdict(changes)} for name, changes in answers.items())
            return
        for name, changes in answers.items():
            parts = [f"made {', '.join(changes.made)}"] if changes.made else []
            parts += [f"dropped {', '.join(changes.dropped)}"] if changes.dropped else []
            print(f"{name}: {'; '.join(parts) or 'up to date'}")


def _index(context: ContextSettings) -> IndexChanges:
    return ask(context.database, lambda source: arrange(source, context.search))


@app.command("sql")
def print_sql(context: SchemaOption = None, as_json: JsonOption = False) -> None:
    """Print all migrations as SQL for an empty database: `relay db sql | psql …`."""
    found = None if context is None else of_context(load_settings().contexts, context)
    own = None if found is None else found.own_schema
    text = migrations.sql(own)
    if found is not None and found.microdao_schema is not None:
        text += microdao.script(own, found.microdao_schema)
    if as_json:
        print_json({"context": context, "schema": own, "sql": text})
    else:
        print(text, end="")


@app.command()
def grant(
    relay: Annotated[list[str] | None, typer.Option("--relay", help="A role of the fleet.")] = None,
    application: Annotated[
        list[str] | None, typer.Option("--application", help="A role of a service that writes events.")
    ] = None,
    context: ContextOption = None,
    as_sql: Annotated[bool, typer.Option("--sql", help="Print the SQL and do nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give roles the rights that they need on the tables, and revoke all others. Repeat this after each upgrade.

    Run it as the owner of the tables. The options may be repeated. deploy/postgres/roles.sql makes roles, with
    their right to connect.
    """
    if not (relay or application):
        raise typer.BadParameter("name a role: --relay ROLE, --application ROLE")
    roles = relay or [], application or []
    if as_sql:
        schema = None if context is None else of_context(load_settings().contexts, context).own_schema
        path = [] if schema is None else [f'SET LOCAL search_path = "{schema}"']
        print("BEGIN;", *(f"{it};" for it in (*path, *grants.statements(*roles))), "COMMIT;", sep="\n")
        return
    with visiting(context, lambda url: grants.grant(url, *roles)) as answers:
        if as_json:
            answers.print_json({"context": name, "relay": roles[0], "application": roles[1]} for name in answers)
            return
        for name in answers:
            print(f"{name}: granted")


def _upgrade(context: ContextSettings) -> tuple[tuple[str, ...], str | None]:
    """Upgrade a database; return the revisions that it lacked and the view of MicroDAO, if it has one."""
    url = context.database
    pending = migrations.status(url).pending
    with bar(f"{context.name}: migrations", "applied") as progress:
        migrations.upgrade(url, waiting=_tell, progress=progress)
    if context.microdao_schema is None:
        return pending, None
    microdao.lay(url, context.microdao_schema, waiting=_tell)
    return pending, f"{context.microdao_schema}.{microdao.VIEW}"


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _line(name: str, found: MigrationStatus) -> str:
    at = found.current or "no tables yet"
    if found.pending:
        return f"{name}: {at}, pending {', '.join(found.pending)}; run: relay db upgrade --context {name}"
    if found.current != found.head:
        return f"{name}: {at}, made by a newer release than this one ({found.head})"
    return f"{name}: {at}, up to date"
