"""`relay dlq`: look at dead letters, and decide about them. Nothing is requeued automatically."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from relay.cli.found import LISTING, Things, print_one, reason_option
from relay.cli.operating import (
    ACTING,
    NOTE_REQUIRED,
    JsonOption,
    OneContextOption,
    Options,
    as_id,
    as_time,
    with_options,
)
from relay.cli.tables import View, columns
from relay.domain.errors import UnknownIncident
from relay.domain.incidents import IncidentFilter, IncidentStatus, show_original
from relay.domain.policies import DeadLetterClass
from relay.ops.rows import DiscardIncidents, FindIncidents, GetIncident, RequeueIncidents, ResolveIncidents

app = typer.Typer(help="Dead letters: list, show, requeue, discard, resolve.", no_args_is_help=True)

_FILTER: Final[Options] = {
    "kind": (Annotated[list[DeadLetterClass], typer.Option("--class", help="Why it became a dead letter.")], ()),
    "subscription": (Annotated[str | None, typer.Option("--subscription", help="Only this subscription.")], None),
    "event_type": (Annotated[str | None, typer.Option("--event-type", help="Only this type.")], None),
    "reason": (Annotated[str | None, reason_option("--reason")], None),
    "since": (
        Annotated[str | None, typer.Option("--since", help="Only those recorded since: 90m, 2d, or a time.")],
        None,
    ),
    "message": (Annotated[str | None, typer.Option("--message", help="Only this message id.")], None),
    "correlation": (Annotated[str | None, typer.Option("--correlation", help="Only this correlation id.")], None),
}
_ACTING: Final[Options] = {
    "ids": (Annotated[list[int] | None, typer.Argument(help="Incidents, by the numbers of `list`.")], None),
    "everything": (Annotated[bool, typer.Option("--all", help="Every open incident of the context.")], False),
    **_FILTER,
    **ACTING,
}
Statuses = Annotated[list[IncidentStatus], typer.Option("--status", help="Open incidents if not given.")]
_OPEN: Final = (IncidentStatus.OPEN,)


def _filter(options: dict[str, Any], statuses: tuple[IncidentStatus, ...]) -> IncidentFilter:
    return IncidentFilter(
        statuses=statuses,
        kinds=tuple(options["kind"]),
        subscription=options["subscription"],
        event_type=options["event_type"],
        reason=options["reason"],
        since=as_time(options["since"], "--since"),
        message_id=as_id(options["message"], "--message"),
        correlation_id=as_id(options["correlation"], "--correlation"),
    )


_LETTERS: Final = Things(
    one=GetIncident,
    find=FindIncidents,
    filters=_FILTER,
    wanted=_filter,
    view=View(
        columns=columns(
            *(
                "context",
                "id",
                "status",
                "recorded_at",
                "reason_code",
                "class",
                "subscription",
                "event_type",
                "attempts",
                "reason",
            )
        ),
        lead=3,
    ),
    more=(
        *("message_id", "occurrence", "subject", "stream", "stream_seq", "correlation_id", "causation_id"),
        *("closed_at", "closed_by", "note", "handled_at"),
    ),
    called="dead letters",
    states=IncidentStatus,
    text=("reason", "reason"),
    fits=lambda context: bool(context.subscriptions),
)


@app.command("list")
@with_options(LISTING | _FILTER)
def list_(
    *,
    status: Statuses = [],  # noqa: B006 - typer copies it
    everything: Annotated[bool, typer.Option("--all", help="Closed incidents too.")] = False,
    options: dict[str, Any],
) -> None:
    """List incidents without their payloads. Status 1 if a database does not answer."""
    _LETTERS.list(options, tuple(IncidentStatus) if everything else tuple(status) or _OPEN)


@app.command()
def show(
    id: Annotated[int, typer.Argument(help="The incident.")],
    payload: Annotated[bool, typer.Option("--payload", help="Show the original message too.")] = False,
    context: OneContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one incident: ids, reason, outcome, and who did what."""
    missing = UnknownIncident(f"there is no incident {id}", hint="relay dlq list --all")
    fields = _LETTERS.get(id, context, missing)
    original = show_original(fields.pop("original"))
    print_one(fields, original if payload else {}, as_json=as_json)


@app.command()
@with_options(_ACTING)
def requeue(*, options: dict[str, Any]) -> None:
    """Put messages back into the inbox that failed, with new attempts. Other consumers do not see them again."""
    _LETTERS.act("requeued", RequeueIncidents, options, _OPEN)


@app.command()
@with_options(_ACTING | NOTE_REQUIRED)
def discard(*, options: dict[str, Any]) -> None:
    """Discard messages. They stay recorded, and you can still requeue them by id."""
    _LETTERS.act("discarded", DiscardIncidents, options, _OPEN)


@app.command()
@with_options(_ACTING | NOTE_REQUIRED)
def resolve(*, options: dict[str, Any]) -> None:
    """Close incidents that you have solved in another way."""
    _LETTERS.act("resolved", ResolveIncidents, options, _OPEN)
