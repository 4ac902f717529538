"""`relay context`: whether all that a context sent and received is accounted for, and how to bring it there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from relay.cli.options import (
    ACTING,
    ContextOption,
    JsonOption,
    Options,
    as_time,
    coded,
    operator,
    print_failure,
    print_json,
    with_options,
)
from relay.cli.restoring import Restore, RestoreStep, Unknown, check, opened
from relay.cli.tables import View, columns, print_rows
from relay.commands.balance import BalancePart, is_balanced
from relay.domain.errors import RelayError, of_context
from relay.settings import Settings, load_settings

app = typer.Typer(help="Contexts: check, restore.", no_args_is_help=True)

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
