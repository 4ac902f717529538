"""`relay controls`: what is paused or limited; pause, resume and limit it. Other groups have words of their own.

`add_controls` gives a group the verbs for what it is about, such as `relay tasks pause`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from relay.bus import Command
from relay.cli.options import (
    ACTING,
    ColumnsOption,
    ContextOption,
    JsonOption,
    Options,
    WideOption,
    one_context,
    operator,
    print_json,
    query_context,
    run_command,
    visiting_contexts,
    with_options,
)
from relay.cli.rows import view_of
from relay.cli.tables import print_rows
from relay.domain.controls import What
from relay.domain.errors import InvalidRequest
from relay.ops.kinds import CONTROLS
from relay.ops.limits import read_duration, read_limit
from relay.ops.requests import LimitControl, ListControls, PauseControl, RestoreLimit, ResumeControl
from relay.settings import ContextSettings

app = typer.Typer(help="Pauses and limits: list, pause, resume, limit, restore.", no_args_is_help=True)

_VIEW: Final = view_of(CONTROLS, lead=4)
_COMMON: Final[Options] = {name: ACTING[name] for name in ("note", "actor", "context", "as_json")}
_END: Final[Options] = {
    "lasting": (Annotated[str | None, typer.Option("--for", help="How long it lasts: 30m, 2h.")], None),
    "until": (Annotated[str | None, typer.Option("--until", help="When it ends: 2026-01-31T03:00Z.")], None),
}
_LIMIT: Final[Options] = {
    "concurrency": (
        Annotated[int | None, typer.Option("--concurrency", min=1, help="How many run at once, in the fleet.")],
        None,
    ),
    "rate": (Annotated[str | None, typer.Option("--rate", help="How many begin in a time: 100/1m.")], None),
    "per_key": (
        Annotated[bool, typer.Option("--per-key", help="The rate is of each key; others go on.")],
        False,
    ),
    "none": (Annotated[bool, typer.Option("--none", help="Lift the limit.")], False),
    **_END,
}
_ANY: Final[Options] = {
    "what": (Annotated[What, typer.Argument(help="What it is.", show_choices=True)], ...),
    "name": (Annotated[str, typer.Argument(help="Its name; none for publishing.")], ""),
}

#: Reads what a command is about from its options.
_Subject = Callable[[dict[str, Any]], tuple[What, str]]


@app.command("list", help=f"{CONTROLS.listing} Status 1 if a database does not answer.")
def _list(
    context: ContextOption = None,
    as_json: JsonOption = False,
    columns: ColumnsOption = None,
    wide: WideOption = False,
) -> None:
    view = _VIEW.choose(columns)
    with visiting_contexts(
        context, lambda found: asyncio.run(query_context(found, ListControls(context=found.name)))
    ) as answers:
        rows = [{"context": name, **it.row()} for name, found in answers.items() for it in found]
        if as_json:
            answers.print_json(rows)
            return
        if rows:
            print_rows(view, rows, wide=wide)
        elif answers:
            print(f"Nothing is paused or limited in {', '.join(answers)}.")
        if answers.failed:
            print(answers.unread())


def add_controls(
    group: typer.Typer,
    subject: Options,
    read: _Subject,
    verbs: tuple[str, ...],
    fits: Callable[[ContextSettings], bool],
) -> None:
    """Add the commands ``verbs`` to a group. ``read``: what they are about, by the options ``subject``."""
    for verb in verbs:
        own = {"pause": _END, "limit": _LIMIT}.get(verb, {})
        run = _runs(verb, read, fits)
        group.command(verb, help=CONTROLS.action(verb).about)(with_options({**subject, **own, **_COMMON})(run))


def _runs(verb: str, read: _Subject, fits: Callable[[ContextSettings], bool]) -> Callable[..., None]:
    def run(*, options: dict[str, Any]) -> None:
        what, name = read(options)
        chosen = one_context(options["context"], fits)
        by = operator(options["actor"], options["note"])
        about = {"context": chosen.name, "what": what, "name": name, "by": by}
        answer = asyncio.run(run_command(chosen, _command(verb, about, options)))
        _told(verb, chosen.name, what, name, answer, as_json=options["as_json"])

    return run


def _command(verb: str, about: Mapping[str, Any], options: Mapping[str, Any]) -> Command[Any]:
    match verb:
        case "pause":
            return PauseControl(**about, **_end(options))
        case "resume":
            return ResumeControl(**about)
        case "restore":
            return RestoreLimit(**about)
    limit = read_limit(options["concurrency"], options["rate"], per_key=options["per_key"])
    if bool(limit) is options["none"]:
        raise InvalidRequest("say which limit: --concurrency, --rate, or --none", field="limit")
    return LimitControl(**about, limit=limit, **_end(options))


def _end(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"lasting": read_duration(options["lasting"], "--for"), "until": _moment(options["until"])}


def _told(verb: str, context: str, what: What, name: str, answer: Any, *, as_json: bool) -> None:
    subject = f"{what.words} {name}".rstrip()
    if as_json:
        told: dict[str, Any] = {"context": context, "what": what.value, "name": name, "action": verb}
        more = {"pause": lambda: {"until": answer.until}, "resume": lambda: {"was_paused": answer}}
        print_json(told | more.get(verb, lambda: {"limit": str(answer)})())
        return
    match verb:
        case "pause":
            print(f"{context}: {answer}")
        case "resume":
            print(f"{context}: {subject} {'goes on' if answer else 'was not paused'}")
        case "limit":
            print(f"{context}: {subject}: the limit is changed; before: {answer}")
        case _:
            print(f"{context}: {subject}: the limit before holds again: {answer}")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{text[:40]!r} is not a time; write 2026-01-31T03:00Z", field="--until") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


add_controls(
    app,
    _ANY,
    lambda options: (options["what"], options["name"]),
    ("pause", "resume", "limit", "restore"),
    lambda _: True,
)
