"""Messages of the inbox."""

from __future__ import annotations

from typing import Final

from relay.adapters.postgres.inbox_operations import CURSOR, MessageFilter, PostgresMessageOperations
from relay.domain.errors import UnknownMessage
from relay.ops.kinds.model import Action, Column, Filter, Kind
from relay.ops.kinds.shared import CHAIN, CORRELATION, ERROR, EVENT_TYPE, SUBSCRIPTION, since, until

MESSAGES: Final = Kind(
    path="inbox",
    command="inbox",
    title="Inbox",
    one="message",
    many="messages",
    whole="Messages in the inbox",
    about="What arrived for the handlers of this context, and how far each message is.",
    empty="A message arrives when a worker pulls it for a subscription of relay.toml.",
    listing="List messages without their bodies, the last received first.",
    shows="where it came from, attempts, its last error, and who did what",
    store=PostgresMessageOperations,
    filter=MessageFilter,
    id=str,
    states=("waiting", "failing", "running", "parked", "dead", "processed"),
    usual=("waiting", "failing", "running", "parked", "dead", "processed"),
    urgent=("waiting", "failing", "running", "parked", "dead"),
    order="cursor",
    cursor=CURSOR,
    filters=(
        Filter(
            name="message_id",
            label="Message",
            meaning="Only this message id, of any subscription",
            form="id",
            option="message",
        ),
        SUBSCRIPTION,
        Filter(
            name="subject",
            label="Subject",
            meaning="Only this subject",
            how="* and > as in NATS",
            hint="sea.event.>",
        ),
        EVENT_TYPE,
        Filter(name="key", label="Key", meaning="Only this partition key", column="partition_key"),
        CORRELATION,
        since("received"),
        until("received"),
        ERROR,
    ),
    columns=(
        Column(name="id", label="Message", show="row"),
        Column(name="message_id", label="Its id at the producer", show="id", on_page=False),
        Column(name="status", label="State", show="state", on_page=False),
        Column(name="event_type", label="Type", show="filter", on_page=False),
        Column(name="event_version", label="Version", show="number"),
        Column(name="subscription", label="Subscription"),
        Column(name="subject", label="Subject"),
        Column(name="stream", label="In the stream", show="place", beside="stream_seq"),
        Column(name="stream_seq", label="Sequence in the stream", holds="number", on_page=False),
        Column(name="partition_key", label="Key"),
        Column(name="attempts", label="Attempts", show="number"),
        Column(name="requeues", label="Requeued", show="number", above=0),
        Column(name="occurred_at", label="Occurred", show="time"),
        Column(name="received_at", label="Received", show="time"),
        Column(name="next_attempt_at", label="Next attempt", show="time", states=("waiting", "failing")),
        Column(name="processed_at", label="Processed", show="time"),
        Column(name="dead_lettered_at", label="Died", show="time"),
        Column(name="class", label="Class"),
        Column(name="others", label="Rows of other subscriptions", in_lists=False),
        Column(name="error_code", label="Code", show="code", on_page=False),
        Column(name="last_error", label="Error", show="reason", typed="error", on_page=False),
        *CHAIN,
    ),
    table=(
        *("id", "status", "received_at", "error_code", "attempts", "event_type", "subscription"),
        *("next_attempt_at", "last_error"),
    ),
    listed=(
        *("status", "event_type", "id", "subscription", "received_at"),
        Column(
            name="processed_at",
            label="Next or ended",
            show="time",
            instead=("dead_lettered_at", "next_attempt_at"),
        ),
        "attempts",
        "last_error",
    ),
    actions=(
        Action(
            name="retry",
            label="Try now",
            about="Try messages now that wait for their next attempt. Their attempts so far stay counted.",
            past="tried now",
            done="is tried now",
            states=("failing",),
            fits=("failing",),
        ),
    ),
    text=("error", "last_error"),
    trouble="Its last error",
    settled=("processed",),
    heading="event_type",
    unknown=lambda id: UnknownMessage(f"there is no message {id}", hint="relay inbox list --all"),
    body="body",
    group="subscription",
    grouped=("failing",),
    fits=lambda context: bool(context.subscriptions),
)
