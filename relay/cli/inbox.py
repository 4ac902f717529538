"""`relay inbox`: look at messages in the inbox, and try now those that wait for their next attempt."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Final

import typer

from relay.adapters.postgres.messages import MessageFilter
from relay.cli.found import LISTING, Things, print_one, reason_option
from relay.cli.operating import ACTING, ContextOption, JsonOption, Options, as_id, as_time, with_options
from relay.cli.tables import View, columns
from relay.domain.errors import UnknownMessage
from relay.domain.incidents import show_original
from relay.ops.rows import FindMessages, GetMessage, RetryMessages

app = typer.Typer(help="Messages in the inbox: list, show, try failing ones now.", no_args_is_help=True)


class Status(Enum):
    """The state of a message. A ``failing`` message waits for its next attempt."""

    WAITING = "waiting"
    FAILING = "failing"
    RUNNING = "running"
    PARKED = "parked"
    DEAD = "dead"
    PROCESSED = "processed"


_UNFINISHED: Final = tuple(status for status in Status if status is not Status.PROCESSED)
_FILTER: Final[Options] = {
    "subscription": (Annotated[str | None, typer.Option("--subscription", help="Only this subscription.")], None),
    "subject": (
        Annotated[str | None, typer.Option("--subject", help="Only this subject; * and > as in NATS.")],
        None,
    ),
    "event_type": (Annotated[str | None, typer.Option("--event-type", help="Only this type.")], None),
    "key": (Annotated[str | None, typer.Option("--key", help="Only this partition key.")], None),
    "correlation": (Annotated[str | None, typer.Option("--correlation", help="Only this correlation id.")], None),
    "since": (
        Annotated[str | None, typer.Option("--since", help="Only those received since: 90m, 2d, or a time.")],
        None,
    ),
    "until": (
        Annotated[str | None, typer.Option("--until", help="Only those received before: 90m, 2d, or a time.")],
        None,
    ),
    "error": (Annotated[str | None, reason_option("--error")], None),
}
_ACTING: Final[Options] = {
    "ids": (Annotated[list[str] | None, typer.Argument(help="Messages, by the ids of `list`.")], None),
    "everything": (Annotated[bool, typer.Option("--all", help="Every failing message of the context.")], False),
    **_FILTER,
    **ACTING,
}


def _filter(options: dict[str, Any], statuses: tuple[Status, ...]) -> MessageFilter:
    return MessageFilter(
        statuses=[status.value for status in statuses],
        subscription=options["subscription"],
        subject=options["subject"],
        event_type=options["event_type"],
        partition_key=options["key"],
        correlation_id=as_id(options["correlation"], "--correlation"),
        since=as_time(options["since"], "--since"),
        until=as_time(options["until"], "--until"),
        error=options["error"],
    )


_MESSAGES: Final = Things(
    one=GetMessage,
    find=FindMessages,
    filters=_FILTER,
    wanted=_filter,
    view=View(
        columns={
            **columns("context", "id", "status", "received_at", "error_code", "attempts", "event_type"),
            **columns("subscription", "next_attempt_at"),
            "error": "last_error",
        },
        lead=3,
    ),
    more=(
        *("message_id", "subject", "stream", "stream_seq", "event_version", "occurred_at", "partition_key"),
        *("correlation_id", "causation_id", "processed_at", "dead_lettered_at", "class", "requeues"),
    ),
    called="messages",
    states=Status,
    text=("error", "last_error"),
    fits=lambda context: bool(context.subscriptions),
)


@app.command("list")
@with_options(LISTING | _FILTER)
def list_(
    *,
    status: Annotated[
        list[Status], typer.Option("--status", help="All except processed messages if not given.")
    ] = [],  # noqa: B006
    everything: Annotated[bool, typer.Option("--all", help="Processed messages too.")] = False,
    options: dict[str, Any],
) -> None:
    """List messages without their bodies, the last received first. Status 1 if a database does not answer."""
    _MESSAGES.list(options, tuple(Status) if everything else tuple(status) or _UNFINISHED)


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="The message.")],
    payload: Annotated[bool, typer.Option("--payload", help="Show the body too.")] = False,
    context: ContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one message: where it came from, attempts, its last error, who did what."""
    missing = UnknownMessage(f"there is no message {id[:200]}", hint="relay inbox list --all")
    fields = _MESSAGES.get(as_id(id, "ID"), context, missing)
    body = show_original(fields.pop("body"))
    print_one(fields, body if payload else {}, as_json=as_json)


@app.command()
@with_options(_ACTING)
def retry(*, options: dict[str, Any]) -> None:
    """Try messages now that wait for their next attempt. Their attempts so far stay counted."""
    if options["ids"]:
        options["ids"] = [as_id(id, "ID") for id in options["ids"]]
    _MESSAGES.act("tried now", RetryMessages, options, (Status.FAILING,))
