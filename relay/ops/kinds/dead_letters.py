"""Dead letters, which the tables keep as incidents."""

from __future__ import annotations

from typing import Final

from relay.adapters.postgres.incidents import PostgresIncidents
from relay.domain.errors import UnknownIncident
from relay.domain.incidents import IncidentFilter, IncidentStatus
from relay.domain.policies import DeadLetterClass
from relay.ops.kinds.model import Action, Argument, Column, Filter, Kind
from relay.ops.kinds.shared import CHAIN, CORRELATION, EVENT_TYPE, REASON, SUBSCRIPTION, since

DEAD_LETTERS: Final = Kind(
    path="dead-letters",
    command="dlq",
    title="Dead letters",
    one="dead letter",
    many="dead letters",
    whole="Dead letters",
    about="Messages that could not be handled, with the reason. Each waits for you to decide.",
    empty="A message becomes a dead letter when its handler answers 422, when nobody can read it, or when every "
    "attempt has failed.",
    nothing="Nothing waits for you",
    listing="List dead letters without their messages, the newest first.",
    shows="ids, reason, outcome, and who did what",
    store=PostgresIncidents,
    filter=IncidentFilter.usual,
    id=int,
    states=tuple(it.value for it in IncidentStatus),
    state=IncidentStatus,
    usual=(IncidentStatus.OPEN.value,),
    urgent=(IncidentStatus.OPEN.value,),
    order="id",
    filters=(
        REASON,
        Filter(
            name="class",
            label="Class",
            meaning="Why it became a dead letter",
            form="choices",
            choices=DeadLetterClass,
            column="kinds",
        ),
        SUBSCRIPTION,
        EVENT_TYPE,
        Filter(name="message_id", label="Message", meaning="Only this message id", form="id", option="message"),
        CORRELATION,
        since("recorded"),
    ),
    columns=(
        Column(name="id", label="No.", show="row", on_page=False),
        Column(name="status", label="State", show="state", on_page=False),
        Column(name="message_id", label="Message", show="life"),
        Column(name="event_type", label="Type"),
        Column(name="subscription", label="Subscription"),
        Column(name="class", label="Class"),
        Column(name="attempts", label="Attempts", show="number"),
        Column(name="recorded_at", label="Died", show="time"),
        Column(name="occurrence", label="Its death no.", show="number", above=1),
        Column(name="subject", label="Subject"),
        Column(name="stream", label="In the stream", show="place", beside="stream_seq"),
        Column(name="stream_seq", label="Sequence in the stream", holds="number", on_page=False),
        Column(name="snoozed_until", label="Snoozed until", show="time", states=("snoozed",)),
        Column(name="closed_at", label="Closed", show="time"),
        Column(name="closed_by", label="Closed by"),
        Column(name="note", label="Note"),
        # How the application's correction ended: done, failed, or none for its type.
        Column(name="correction", label="Correction"),
        Column(name="handled_at", label="Handled since", show="time"),
        Column(name="reason_code", label="Code", show="code", on_page=False),
        Column(name="reason", label="Reason", show="reason", on_page=False),
        *CHAIN,
    ),
    table=(
        *("id", "status", "recorded_at", "reason_code", "class", "subscription", "event_type", "attempts"),
        "reason",
    ),
    listed=("status", "id", "reason", "subscription", "event_type", "message_id", "recorded_at", "attempts"),
    actions=(
        Action(
            name="requeue",
            label="Requeue",
            about="Put messages back into the inbox that failed, with new attempts. "
            "Other consumers do not see them again.",
            past="requeued",
            done="goes to its handler again",
            states=("open",),
            fits=("open", "snoozed", "discarded", "resolved"),
        ),
        Action(
            name="snooze",
            label="Snooze",
            about="Hide dead letters from the open ones for a time. Then they are open again, with another alert.",
            past="snoozed",
            done="is hidden until its time",
            states=("open",),
            fits=("open", "snoozed"),
            arguments=(
                Argument(
                    name="for",
                    parameter="duration",
                    label="For",
                    meaning="How long",
                    hint="1h",
                    form="duration",
                ),
            ),
            undo="wake",
        ),
        Action(
            name="wake",
            label="Wake",
            about="Open snoozed dead letters again before their time.",
            past="woken",
            done="is open again",
            states=("snoozed",),
            fits=("snoozed",),
        ),
        Action(
            name="resolve",
            label="Resolve",
            about="Close dead letters that you have solved in another way. They stay recorded.",
            past="resolved",
            done="is closed as resolved",
            states=("open",),
            fits=("open", "snoozed"),
            needs_note=True,
            undo="requeue",
        ),
        Action(
            name="discard",
            label="Discard",
            about="Discard messages. They stay recorded, and you can still requeue them by id.",
            past="discarded",
            done="is given up",
            states=("open",),
            fits=("open", "snoozed"),
            needs_note=True,
            harsh=True,
            undo="requeue",
        ),
    ),
    text=("reason", "reason"),
    trouble="Why it died",
    unknown=lambda id: UnknownIncident(f"there is no dead letter {id}", hint="relay dlq list --all"),
    body="original",
    group="class",
    grouped=("open",),
    fits=lambda context: bool(context.subscriptions),
)
