"""`relay context`: whether all that a context sent and received is accounted for, and how to bring it there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from relay.adapters.jetstream.leftovers import Leftover
from relay.adapters.jetstream.leftovers import remove as delete
from relay.adapters.postgres.closing import PostgresClosing
from relay.cli.moving import compared, open_moved, other
from relay.cli.options import (
    ACTING,
    ContextOption,
    JsonOption,
    Options,
    as_time,
    ask,
    coded,
    one_context,
    operator,
    print_failure,
    print_json,
    with_options,
)
from relay.cli.renaming import Rename, check_renaming, check_stopped, leftovers
from relay.cli.restoring import Restore, RestoreStep, Unknown, check, opened
from relay.cli.tables import View, columns, print_rows
from relay.commands.balance import BalancePart, is_balanced
from relay.credentials import jetstream
from relay.domain.errors import RelayError, of_context
from relay.settings import ContextSettings, Settings, load_settings

app = typer.Typer(help="Contexts: check, restore, move, rename, remove.", no_args_is_help=True)

_PARTS: Final = View(columns=columns("context", "part", "checked", "coming", "dead", "wrong"), lead=2)
_STEPS: Final = View(columns=columns("context", "step", "count", "what"), lead=3)


@app.command("check")
def check_balance(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Compare outbox, streams and inbox, whatever the age of their rows, and say whether they balance.

    They do if each published event is in its stream, each event of the stream in the outbox, and each acknowledged
    message in the inbox. Status 1 if not.
    """
    settings = load_settings()
    failed: dict[str, RelayError] = {}
    parts = asyncio.run(_check(settings, _chosen(settings, context), failed))
    _tell([], parts, failed, as_json=as_json)


async def _check(settings: Settings, names: Sequence[str], failed: dict[str, RelayError]) -> Sequence[BalancePart]:
    async with opened(settings) as application:
        return await check(application, names, failed)


_RESTORE: Final[Options] = {
    "unknown": (
        Annotated[
            Unknown | None,
            typer.Option(
                "--unknown",
                help="Events that only a stream has: write them into the outbox, tell its consumers, or delete"
                " them from the stream, which only fits if all of its consumers are set back, too.",
            ),
        ],
        None,
    ),
    "since": (
        Annotated[
            str | None,
            typer.Option(
                "--since", help="Read again since then, from archive and outbox, too: the backup's time."
            ),
        ],
        None,
    ),
    "wait": (Annotated[bool, typer.Option("--wait", help="Wait until workers have read all again.")], False),
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")], False),
    **{name: ACTING[name] for name in ("note", "actor", "yes")},
}


@app.command("restore")
@with_options(_RESTORE)
def restore(*, context: ContextOption = None, as_json: JsonOption = False, options: dict[str, Any]) -> None:
    """Bring contexts into balance after a database or a NATS cluster was restored, moved or lost.

    Makes streams and consumers, sets sequences forward, publishes again what streams lost, decides about events
    that an outbox does not know, and has workers read again what an inbox lacks. What an inbox knows is not
    handled again. May be repeated.
    """
    settings = load_settings()
    by, since = operator(options["actor"], options["note"]), as_time(options["since"], "--since")
    asked = {"names": _chosen(settings, context), "by": by, "unknown": options["unknown"], "since": since}

    async def once(*, dry_run: bool, counted: Mapping[tuple[str, str], int] | None = None) -> Restore:
        async with opened(settings) as application:
            work = Restore(application=application, counted=counted, **asked)
            await work.run(dry_run=dry_run)
            if options["wait"] and not dry_run:
                await work.wait()
            return work

    counted = None
    if options["dry_run"] or not options["yes"]:
        planned = asyncio.run(once(dry_run=True))
        if options["dry_run"]:
            _tell(planned.steps, None, planned.failed, as_json=as_json)
            return
        if planned.steps and not as_json:
            _print_steps(planned.steps)
        if planned.steps:
            typer.confirm("Go on?", abort=True, err=True)
        counted = planned.places
    done = asyncio.run(once(dry_run=False, counted=counted))
    parts = asyncio.run(_check(settings, asked["names"], done.failed))
    _tell(done.steps, parts, done.failed, as_json=as_json)


_OTHER_URL: Final = "RELAY_OTHER_DATABASE_URL"
_ACTS: Final[Options] = {name: ACTING[name] for name in ("note", "actor", "context", "as_json")}


@app.command("close")
@with_options(_ACTS)
def close(*, options: dict[str, Any]) -> None:
    """Close the tables of a context for a move to another database: they refuse every change, whoever makes it.

    Workers wait as in an outage. May be repeated. `relay context open` opens them again.
    """
    found, by = _one(options), operator(options["actor"], options["note"])
    was_open = ask(found.database, lambda source: PostgresClosing(source).close(by))
    text = "closed; copy the tables now" if was_open else "was closed already"
    _said(found.name, {"closed": True, "was_open": was_open}, text, as_json=options["as_json"])


@app.command("compare")
@with_options(_ACTS)
def compare(
    to: Annotated[
        str, typer.Option("--to", envvar=_OTHER_URL, help="The address of the other database.", show_default=False)
    ],
    *,
    options: dict[str, Any],
) -> None:
    """Compare all rows of a context's tables with those of a copy. Status 1 if they differ."""
    found = _one(options)
    lines = asyncio.run(compared(found, found.database, other(found, to)))
    text = "\n".join(lines) or "both hold the same"
    _said(found.name, {"same": not lines, "differences": lines}, text, as_json=options["as_json"])
    if lines:
        raise typer.Exit(1)


@app.command("open")
@with_options(_ACTS)
def open_tables(
    old: Annotated[
        str | None,
        typer.Option("--from", envvar=_OTHER_URL, help="The address of the old database.", show_default=False),
    ] = None,
    *,
    options: dict[str, Any],
) -> None:
    """Open the tables of a context again: those of the copy, or the old ones if nothing has moved.

    A copy is opened only if the old tables are closed and hold the same. They then stay closed for ever.
    """
    found, by = _one(options), operator(options["actor"], options["note"])
    opened_now = asyncio.run(open_moved(found, old, by))
    text = "open" if opened_now else "was open already"
    _said(found.name, {"closed": False, "was_closed": opened_now}, text, as_json=options["as_json"])


_MOVES: Final[Options] = {
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")], False),
    **{name: ACTING[name] for name in ("note", "actor", "yes", "as_json")},
}


@app.command("rename")
@with_options({**_MOVES, "context": ACTING["context"]})
def rename(
    old: Annotated[str, typer.Argument(help="The name that relay.toml had before.")], *, options: dict[str, Any]
) -> None:
    """Let streams, consumers and dead letters follow a context that has another name in relay.toml now.

    Makes what is missing, publishes again what somebody has not read from the old streams, and copies dead
    letters. Lists what is left: `relay context remove OLD`. Stop all processes first. May be repeated.
    """
    settings, new = load_settings(), _one(options).name
    by = operator(options["actor"], options["note"])
    check_renaming(settings, old, new)

    async def once(*, dry_run: bool) -> tuple[Sequence[RestoreStep], Sequence[Leftover]]:
        async with opened(settings) as application:
            work = Rename(application=application, old=old, new=new, by=by)
            return work.steps, await work.run(dry_run=dry_run)

    steps, left = asyncio.run(once(dry_run=True))
    if not options["dry_run"]:
        if steps and not options["yes"]:
            _print_steps(steps)
            typer.confirm("Go on?", abort=True, err=True)
        steps, left = asyncio.run(once(dry_run=False))
    _tell_left({"context": new, "old": old}, steps, left, dry_run=options["dry_run"], as_json=options["as_json"])


@app.command("remove")
@with_options(
    {
        "unread": (
            Annotated[
                bool, typer.Option("--unread", help="Also streams with messages that somebody has not read.")
            ],
            False,
        ),
        **_MOVES,
    }
)
def remove(
    name: Annotated[str, typer.Argument(help="A context that relay.toml has no more.")], *, options: dict[str, Any]
) -> None:
    """Delete what a context has left on NATS and in Redis. Its database stays: drop it yourself.

    Status 1 if something is left, because somebody has not read it.
    """
    settings = load_settings()
    found, keys = asyncio.run(leftovers(settings, name)), asyncio.run(_keys(settings, name, delete=False))
    kept = [it for it in found if it.durable is None and it.waiting and not options["unread"]]
    gone = [it for it in found if it not in kept]
    steps = [
        RestoreStep(context=name, step="delete", count=it.messages or it.waiting, text=it.name) for it in gone
    ]
    steps += [RestoreStep(context=name, step="delete", count=keys, text="keys in Redis")] if keys else []
    if not options["dry_run"] and steps:
        if not options["yes"]:
            _print_steps(steps)
            typer.confirm("Delete them for ever?", abort=True, err=True)
        asyncio.run(_delete(settings, gone))
        asyncio.run(_keys(settings, name, delete=True))
    _tell_left({"context": name}, steps, kept, dry_run=options["dry_run"], as_json=options["as_json"])
    if kept:
        raise typer.Exit(1)


async def _delete(settings: Settings, found: Sequence[Leftover]) -> None:
    async with jetstream(settings) as js:
        await delete(js, found)


async def _keys(settings: Settings, name: str, *, delete: bool) -> int:
    async with opened(settings) as application:
        await check_stopped(application, name)
        return await application.gates.of_context(name, delete=delete)


def _tell_left(
    about: Mapping[str, Any],
    steps: Sequence[RestoreStep],
    left: Sequence[Leftover],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        shown = [{"name": it.name, "messages": it.messages, "waiting": it.waiting} for it in left]
        print_json({**about, "dry_run": dry_run, "steps": [_step(it) for it in steps], "left": shown})
        return
    _print_steps(steps)
    for it in left:
        unread = f", {it.waiting} not read by somebody" if it.waiting else ""
        print(f"left: {it.name}{unread}")
    if not steps and not left:
        print("Nothing to do.")


def _one(options: Mapping[str, Any]) -> ContextSettings:
    return one_context(options["context"], lambda _: True)


def _said(context: str, answer: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    print_json({"context": context, **answer}) if as_json else print(f"{context}: {text}")


def _chosen(settings: Settings, context: str | None) -> Sequence[str]:
    return [*settings.contexts] if context is None else [of_context(settings.contexts, context).name]


def _tell(
    steps: Sequence[RestoreStep],
    parts: Sequence[BalancePart] | None,
    failed: Mapping[str, RelayError],
    *,
    as_json: bool,
) -> None:
    """Print steps and verdict. Status 1 if something is open or wrong, or a context could not be read."""
    balanced = None if parts is None else not failed and is_balanced(parts)
    if as_json:
        errors = [{"context": name, "error": coded(error)} for name, error in failed.items()]
        shown = [{"context": it.context, **_part(it), "wrong": dict(it.wrong)} for it in parts or ()]
        done = [{"context": it.context, **_step(it), "undone": it.undone} for it in steps]
        print_json({"balanced": balanced, "steps": done, "parts": shown, "errors": errors})
    else:
        _print_steps(steps)
        if parts:
            print_rows(_PARTS, [_part(it) for it in parts])
        if balanced is not None:
            print("balanced" if balanced else "not balanced: relay context restore, docs/how-to/moving.md")
        elif not steps and not failed:
            print("Nothing to do.")
    for name, error in failed.items():
        print_failure(f"context {name}", error)
    if failed or balanced is False or any(it.undone for it in steps):
        raise typer.Exit(1)


def _print_steps(steps: Sequence[RestoreStep]) -> None:
    if steps:
        print_rows(_STEPS, [_step(it) for it in steps])


def _step(it: RestoreStep) -> dict[str, Any]:
    return {
        "context": it.context,
        "step": it.step,
        "count": "all" if it.count is None else it.count,
        "what": it.text,
    }


def _part(it: BalancePart) -> dict[str, Any]:
    wrong = ", ".join(f"{count} {what}" for what, count in it.wrong.items())
    counts = {"checked": it.checked, "coming": it.coming, "dead": it.dead}
    return {"context": it.context, "part": it.name, **counts, "wrong": wrong}
