"""Events of the outbox."""

from __future__ import annotations

from typing import Final

from relay.adapters.postgres.row_operations import EventFilter, PostgresOutboxOperations
from relay.domain.errors import NotPublishable
from relay.ops.kinds.model import Action, Column, Filter, Kind
from relay.ops.kinds.shared import CHAIN, CORRELATION, ERROR, EVENT_TYPE, since, until

EVENTS: Final = Kind(
    path="events",
    command="outbox",
    title="Events",
    one="event",
    many="events",
    whole="Events",
    about="What services wrote in their transactions, and whether it is in the stream.",
    empty="An event is a row that a service writes with Outbox.add, or with a plain INSERT into outbox_events.",
    listing="List events without their payloads, the newest first.",
    shows="its status, its copy in the stream, and who did what",
    store=PostgresOutboxOperations,
    filter=EventFilter,
    id=str,
    states=("waiting", "failing", "dead", "published"),
    usual=("waiting", "failing", "dead", "published"),
    urgent=("dead", "failing"),
    order="seq",
    filters=(
        EVENT_TYPE,
        Filter(
            name="aggregate_type",
            label="Aggregate",
            meaning="Only this aggregate",
            option="aggregate",
            how="TYPE:ID, or TYPE",
        ),
        Filter(
            name="aggregate_id",
            label="Aggregate id",
            meaning="Only aggregates of this id",
            option=None,
            rest_of="aggregate_type",
        ),
        CORRELATION,
        since("that happened"),
        until("that happened"),
        ERROR,
    ),
    columns=(
        Column(name="id", label="Id", show="row"),
        Column(name="status", label="State", show="state", on_page=False),
        Column(name="event_type", label="Type", show="filter", beside="event_version", on_page=False),
        Column(name="event_version", label="Version", holds="number", on_page=False),
        Column(name="seq", label="Sequence", show="number", on_page=False),
        Column(name="aggregate_type", label="About", beside="aggregate_id"),
        Column(name="aggregate_id", label="Aggregate id", on_page=False),
        Column(name="partition_key", label="Key of its order", typed="key"),
        Column(name="topic", label="Topic"),
        Column(name="stream", label="Stream"),
        Column(name="occurred_at", label="Occurred", show="time"),
        Column(name="published_at", label="Published", show="time"),
        Column(name="published_stream", label="In the stream", show="place", beside="published_seq"),
        Column(name="published_seq", label="Sequence in the stream", holds="number", on_page=False),
        Column(name="dead_at", label="Given up", show="time"),
        Column(name="publish_attempts", label="Attempts", show="number", typed="attempts"),
        Column(name="available_at", label="Next attempt", show="time", states=("waiting", "failing")),
        Column(name="generation", label="Generation", show="number", above=0),
        Column(name="error_code", label="Code", show="code", on_page=False),
        Column(name="publish_error", label="Error", show="reason", typed="error", on_page=False),
        *CHAIN,
    ),
    table=(
        *("id", "status", "occurred_at", "error_code", "publish_attempts", "event_type", "partition_key"),
        "publish_error",
    ),
    listed=(
        "status",
        "event_type",
        "id",
        "aggregate_type",
        Column(name="occurred_at", label="When", show="time"),
        "publish_attempts",
        Column(name="publish_error", label="Stream or error", show="outcome", instead=("published_stream",)),
    ),
    actions=(
        Action(
            name="retry",
            label="Retry",
            about="Retry failed events, with new attempts and a new back-off. The business rows do not change.",
            past="published",
            reported="to be published",
            done="will be tried again",
            states=("dead", "failing"),
            fits=("dead", "failing"),
        ),
        Action(
            name="replay",
            label="Replay",
            about="Publish events once more, to every consumer of the stream. "
            "Consumers recognise events by their id.",
            past="published once more",
            reported="to be published once more",
            done="will be published once more",
            states=("published",),
            fits=("published",),
            narrowed=True,
        ),
    ),
    text=("error", "publish_error"),
    trouble="Why it is not in the stream",
    settled=("published",),
    heading="event_type",
    unknown=lambda id: NotPublishable(f"there is no event {id}", hint="relay outbox list"),
)
