"""Every kind of rows that has pages. A new kind needs an entry here, and two templates."""

from __future__ import annotations

from typing import Final, get_args
from uuid import UUID

from relay.domain.incidents import IncidentStatus
from relay.domain.policies import DeadLetterClass
from relay.ops import rows
from relay.ops.api import models
from relay.ops.console.kinds import Action, Field, Kind

_SINCE: Final = Field(name="since", label="Since", options=("15m", "1h", "6h", "1d", "7d"))
_CORRELATION: Final = Field(name="correlation_id", label="Correlation")
_ERROR: Final = Field(name="error", label="Error", hint="a code or a part of the text")
_TYPE: Final = Field(name="event_type", label="Type")


EVENTS: Final = Kind(
    path="events",
    title="Events",
    noun="event",
    about="What services wrote in their transactions, and whether it is in the stream.",
    find=rows.FindEvents,
    get=rows.GetEvent,
    asked=models.EventsAsked,
    filter=models.EventsFilter,
    id=str,
    statuses=get_args(models.EventStatus),
    usual=get_args(models.EventStatus),
    order="seq",
    fields=(
        _TYPE,
        Field(name="aggregate_type", label="Aggregate"),
        Field(name="aggregate_id", label="Aggregate id"),
        _CORRELATION,
        _ERROR,
        _SINCE,
    ),
    actions=(
        Action(
            name="retry",
            label="Retry",
            done="will be tried again",
            do=rows.RetryEvents,
            statuses=("dead", "failing"),
            fits=("dead", "failing"),
            about="Attempts and back-off start anew. The operation that wrote the event is not repeated.",
        ),
        Action(
            name="replay",
            label="Replay",
            done="will be published once more",
            do=rows.ReplayEvents,
            statuses=("published",),
            fits=("published",),
            about="The event goes to every consumer of the stream once more. "
            "Consumers that have processed it recognise its id and skip it.",
            narrowed=True,
        ),
    ),
    empty="An event is a row that a service writes with Outbox.add, or with a plain INSERT into outbox_events.",
)

INBOX: Final = Kind(
    path="inbox",
    title="Inbox",
    noun="message",
    about="What arrived for the handlers of this context, and how far each message is.",
    find=rows.FindMessages,
    get=rows.GetMessage,
    asked=models.MessagesAsked,
    filter=models.MessagesFilter,
    id=str,
    statuses=get_args(models.MessageStatus),
    usual=get_args(models.MessageStatus),
    order=rows.FindMessages.key,
    fields=(
        Field(name="subscription", label="Subscription"),
        _TYPE,
        Field(name="subject", label="Subject", hint="sea.event.>"),
        Field(name="key", label="Key"),
        _CORRELATION,
        _ERROR,
        _SINCE,
    ),
    actions=(
        Action(
            name="retry",
            label="Try now",
            done="is tried now",
            do=rows.RetryMessages,
            statuses=("failing",),
            fits=("failing",),
            about="The next attempt begins at once. What is spent of the attempts stays spent.",
        ),
    ),
    empty="A message arrives when a worker pulls it for a subscription of relay.toml.",
    body="body",
    group=rows.GroupMessages,
    grouped=("failing",),
)

LETTERS: Final = Kind(
    path="dead-letters",
    title="Dead letters",
    noun="dead letter",
    about="Messages that could not be handled, with the reason. Each waits for you to decide.",
    find=rows.FindIncidents,
    get=rows.GetIncident,
    asked=models.LettersAsked,
    filter=models.LettersFilter,
    id=models.Number,
    statuses=[it.value for it in IncidentStatus],
    usual=[IncidentStatus.OPEN.value],
    order="id",
    fields=(
        Field(name="reason", label="Reason", hint="a code or a part of the text"),
        Field(name="class", label="Class", options=[it.value for it in DeadLetterClass]),
        Field(name="subscription", label="Subscription"),
        _TYPE,
        Field(name="message_id", label="Message"),
        _CORRELATION,
        _SINCE,
    ),
    actions=(
        Action(
            name="requeue",
            label="Requeue",
            done="goes to its handler again",
            do=rows.RequeueIncidents,
            statuses=("open",),
            fits=("open", "discarded", "resolved"),
            about="The message goes back into the inbox of the consumer that failed, with new attempts. "
            "No other consumer sees it again.",
        ),
        Action(
            name="resolve",
            label="Resolve",
            done="is closed as resolved",
            do=rows.ResolveIncidents,
            statuses=("open",),
            fits=("open",),
            about="You have dealt with it by other means. The message is not handled; it stays recorded.",
            noted=True,
            undo="requeue",
        ),
        Action(
            name="discard",
            label="Discard",
            done="is given up",
            do=rows.DiscardIncidents,
            statuses=("open",),
            fits=("open",),
            about="The message is given up. It stays recorded, and you can still requeue it by its number.",
            noted=True,
            harsh=True,
            undo="requeue",
        ),
    ),
    empty="A message becomes a dead letter when its handler answers 422, when nobody can read it, or when every "
    "attempt has failed.",
    body="original",
    group=rows.GroupIncidents,
    grouped=("open",),
    by="reason",
)

TASKS: Final = Kind(
    path="tasks",
    title="Tasks",
    noun="task",
    about="Work that services do later, as rows of their own transactions.",
    find=rows.FindTasks,
    get=rows.GetTask,
    asked=models.TasksAsked,
    filter=models.TasksFilter,
    id=UUID,
    statuses=get_args(models.TaskStatus),
    usual=get_args(models.TaskStatus),
    order="seq",
    fields=(Field(name="type", label="Type"), Field(name="queue", label="Queue"), _CORRELATION, _ERROR, _SINCE),
    actions=(
        Action(
            name="retry",
            label="Run again",
            done="will be run again",
            do=rows.RetryTasks,
            statuses=("failed",),
            fits=("failed", "cancelled"),
            about="The task runs again, with new attempts.",
        ),
        Action(
            name="cancel",
            label="Cancel",
            done="is cancelled",
            do=rows.CancelTasks,
            statuses=("pending", "delivered"),
            fits=("pending", "delivered"),
            about="The task is given up. One that runs now is left alone.",
            harsh=True,
            undo="retry",
        ),
    ),
    empty="A task is scheduled with schedule(session, function, argument), in the transaction of a change.",
)

KINDS: Final = {kind.path: kind for kind in (EVENTS, INBOX, LETTERS, TASKS)}
