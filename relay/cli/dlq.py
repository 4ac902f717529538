"""`relay dlq`: look at dead letters, and decide about them. Nothing is requeued by itself (DESIGN §7)."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.postgres.source import Source
from relay.cli.contexts import ContextOption, JsonOption
from relay.cli.found import act_on, columns, find_chosen, list_found, print_one
from relay.cli.operating import (
    ACTING,
    NOTE_REQUIRED,
    OneContextOption,
    Options,
    as_time,
    as_uuid,
    ask,
    one_context,
    with_options,
)
from relay.commands.operate import OperateIncidents, Outcome
from relay.domain.errors import UnknownIncident
from relay.domain.incidents import IncidentDetail, IncidentFilter, IncidentStatus
from relay.domain.operators import Operator
from relay.domain.policies import DeadLetterClass
from relay.queries import Page

Action = Callable[[OperateIncidents, Sequence[int], Operator], Awaitable[Outcome]]

app = typer.Typer(help="Dead letters: list, show, requeue, discard, resolve.", no_args_is_help=True)

_FILTER: Final[Options] = {
    "kind": (Annotated[list[DeadLetterClass], typer.Option("--class", help="Why it died.")], ()),
    "subscription": (Annotated[str | None, typer.Option("--subscription", help="Of this subscription.")], None),
    "event_type": (Annotated[str | None, typer.Option("--event-type", help="Of this type.")], None),
    "reason": (Annotated[str | None, typer.Option("--reason", help="The reason holds this text.")], None),
    "since": (Annotated[str | None, typer.Option("--since", help="Recorded since: 90m, 2d, or a time.")], None),
    "message": (Annotated[str | None, typer.Option("--message", help="Of this message id.")], None),
    "correlation": (Annotated[str | None, typer.Option("--correlation", help="Of this correlation id.")], None),
}
_ACTING: Final[Options] = {
    "ids": (Annotated[list[int] | None, typer.Argument(help="Incidents, by the numbers of `list`.")], None),
    "everything": (Annotated[bool, typer.Option("--all", help="Every open incident of the context.")], False),
    **_FILTER,
    **ACTING,
}
Statuses = Annotated[list[IncidentStatus], typer.Option("--status", help="Open ones if not given.")]
_OPEN: Final = (IncidentStatus.OPEN,)

_COLUMNS: Final = columns(
    "context", "id", "status", "kind", "subscription", "event_type", "attempts", "recorded_at", "reason"
)


@app.command("list")
@with_options(_FILTER)
def list_(
    *,
    status: Statuses = [],  # noqa: B006 - typer copies it
    everything: Annotated[bool, typer.Option("--all", help="Closed ones too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show so many, the newest first.")] = 50,
    context: ContextOption = None,
    as_json: JsonOption = False,
    options: dict[str, Any],
) -> None:
    """List incidents, payloads left out. Status 1 if a database does not answer."""
    wanted = _filter(options, () if everything else tuple(status) or _OPEN)
    list_found(
        context,
        lambda source: PostgresIncidents(source).find(wanted, limit),
        _COLUMNS,
        "No dead letters.",
        as_json=as_json,
    )


@app.command()
def show(
    id: Annotated[int, typer.Argument(help="The incident.")],
    payload: Annotated[bool, typer.Option("--payload", help="Show the original message too.")] = False,
    context: OneContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one incident: ids, reason, outcome, and who did what."""
    _, url = _context(context)
    detail = ask(url, lambda source: PostgresIncidents(source).get(id))
    if detail is None:
        raise UnknownIncident(f"there is no incident {id}", hint="relay dlq list --all")
    fields = {**asdict(detail.incident), "headers": dict(detail.headers), "history": list(detail.history)}
    if payload:
        fields |= _payload(detail)
    print_one(fields, as_json=as_json)


def _payload(detail: IncidentDetail) -> dict[str, Any]:
    if detail.original is None:
        return {"payload": None, "payload_encoding": None}
    try:
        return {"payload": detail.original.decode(), "payload_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(detail.original).decode(), "payload_encoding": "base64"}


@app.command()
@with_options(_ACTING)
def requeue(*, options: dict[str, Any]) -> None:
    """Put messages back into the failing consumer's inbox, with new attempts. Others do not see them again."""
    _act("requeued", OperateIncidents.requeue, options)


@app.command()
@with_options(_ACTING | NOTE_REQUIRED)
def discard(*, options: dict[str, Any]) -> None:
    """Give messages up. They stay recorded, and requeue still takes them by id."""
    _act("discarded", OperateIncidents.discard, options)


@app.command()
@with_options(_ACTING | NOTE_REQUIRED)
def resolve(*, options: dict[str, Any]) -> None:
    """Close incidents that were dealt with by other means."""
    _act("resolved", OperateIncidents.resolve, options)


def _act(done: str, action: Action, options: dict[str, Any]) -> None:
    """Find the chosen incidents, ask, act in one transaction, answer id by id."""
    where = _context(options["context"])
    found = find_chosen(options, _FILTER, lambda: _select(where[1], _filter(options, _OPEN), options["limit"]))
    act_on(
        where,
        found,
        "dead letters",
        done,
        lambda source, ids, by: action(OperateIncidents(PostgresIncidents(source)), ids, by),
        options,
    )


def _select(url: str, wanted: IncidentFilter, limit: int) -> list[int]:
    async def find(source: Source) -> Page[Any]:
        return await PostgresIncidents(source).find(wanted, limit)

    return [found.id for found in ask(url, find).all_of(limit)]


def _filter(options: dict[str, Any], statuses: tuple[IncidentStatus, ...]) -> IncidentFilter:
    return IncidentFilter(
        statuses=statuses,
        kinds=tuple(options["kind"]),
        subscription=options["subscription"],
        event_type=options["event_type"],
        reason=options["reason"],
        since=as_time(options["since"], "--since"),
        message_id=as_uuid(options["message"], "--message"),
        correlation_id=as_uuid(options["correlation"], "--correlation"),
    )


def _context(name: str | None) -> tuple[str, str]:
    return one_context(name, lambda found: bool(found.subscriptions))
