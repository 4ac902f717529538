"""Operators' questions about rows and actions on them, as queries and commands of the command line and the API.

A command names the rows in one of two ways: by ``ids``, or by a filter in ``wanted``. If the filter finds more
than ``limit`` rows, the command changes none. A command may have both: then the filter says how the ids were
chosen. If it no longer finds one of them, that id is not refused, because no one has named it. For each id the
answer says: done, or why not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, TypeAlias
from uuid import UUID

from pydantic import Field

from relay.adapters.postgres.messages import MessageFilter
from relay.adapters.postgres.operating import EventFilter, TaskFilter
from relay.adapters.postgres.paging import Page, Row
from relay.bus import Command, Query
from relay.domain.archive import Manifest
from relay.domain.backlogs import Brake, FullInbox, InboxBacklog, OutboxBacklog
from relay.domain.identity import Id
from relay.domain.incidents import IncidentFilter
from relay.domain.operators import Operator, Outcome
from relay.domain.schedule import Schedule

#: The backlogs of a context, the brake on its producers, and its full inboxes.
Backlog: TypeAlias = tuple[OutboxBacklog, InboxBacklog, Brake, Sequence[FullInbox]]
#: How many rows there are of each kind, with what the kind is.
Groups: TypeAlias = Sequence[Mapping[str, Any]]
#: A page ends before this key of the order in which the rows are listed.
Before = Annotated[int, Field(ge=1, le=2**63 - 1)]
Rows = Annotated[int, Field(ge=1, le=100_000)]


class ReadBacklog(Query[Backlog]):
    """How much waits in a context, since when, and in which state (QRY-050, QRY-051)."""

    context: str


class Find(Query[Page[Row]]):
    """The newest rows that a filter finds, without their payloads. ``before``: those behind the last of a page.

    ``key``: the column by which pages follow each other. ``thorough``: look at all rows, however long it takes.
    Otherwise a page looks at the newest of each state, and its ``reach`` says where that ended.
    """

    key: ClassVar[str]
    context: str
    wanted: Any
    limit: Rows = 50
    before: Before | str | None = None
    thorough: bool = True


class Get(Query[Row]):
    """All fields of one row, its payload too, and its history; nothing if there is no such row."""

    context: str
    id: Any


class Act(Command[Outcome]):
    """An action on rows. All of them change in one transaction, with a row in the audit log that names ``by``."""

    context: str
    ids: Sequence[Any] | None = None
    wanted: Any = None
    limit: Rows = 1_000
    by: Operator


# --- events ---


class FindEvents(Find):
    """Events of the outbox."""

    key: ClassVar[str] = "seq"
    wanted: EventFilter


class GetEvent(Get):
    """An event, by its id."""

    id: Id


class RetryEvents(Act):
    """Retry failed events, with new attempts and a new back-off. The business rows do not change."""

    ids: Sequence[Id] | None = None
    wanted: EventFilter | None = None


class ReplayEvents(Act):
    """Publish events once more, to every consumer of the stream. Consumers recognise events by their id."""

    ids: Sequence[Id] | None = None
    wanted: EventFilter | None = None


# --- messages of the inbox ---


class FindMessages(Find):
    """Messages of the inbox."""

    key: ClassVar[str] = "cursor"
    wanted: MessageFilter


class _Group(Query[Groups]):
    """``thorough``: as of `Find`; but the answer does not say how far a look went: a page beside it does."""

    context: str
    wanted: Any
    thorough: bool = True


class GroupMessages(_Group):
    """How many messages a filter finds of each subscription and code of an error, the most frequent first."""

    wanted: MessageFilter


class GetMessage(Get):
    """A message of the inbox, by its id."""

    id: Id


class RetryMessages(Act):
    """Try messages now that wait for their next attempt. Their attempts so far stay counted."""

    ids: Sequence[Id] | None = None
    wanted: MessageFilter | None = None


# --- dead letters ---


class FindIncidents(Find):
    """Dead letters, as incidents."""

    key: ClassVar[str] = "id"
    wanted: IncidentFilter


class GroupIncidents(_Group):
    """How many dead letters a filter finds of each class and code of a reason, the most frequent first."""

    wanted: IncidentFilter


class GetIncident(Get):
    """A dead letter, by its number."""

    id: int


class _ActOnIncidents(Act):
    ids: Sequence[int] | None = None
    wanted: IncidentFilter | None = None


class RequeueIncidents(_ActOnIncidents):
    """Put messages back into the inbox that failed, with new attempts. Other consumers do not see them again."""


class DiscardIncidents(_ActOnIncidents):
    """Discard messages. They stay recorded, and can still be requeued by id. Needs a note."""


class ResolveIncidents(_ActOnIncidents):
    """Close incidents that were solved in another way. Needs a note."""


# --- tasks ---


class FindTasks(Find):
    """Background tasks."""

    key: ClassVar[str] = "seq"
    wanted: TaskFilter


class GetTask(Get):
    """A task, by its id."""

    id: UUID


class _ActOnTasks(Act):
    ids: Sequence[UUID] | None = None
    wanted: TaskFilter | None = None


class RetryTasks(_ActOnTasks):
    """Run failed tasks again, with new attempts. By id also cancelled tasks."""


class CancelTasks(_ActOnTasks):
    """Cancel tasks that do not run: pending ones, and those that wait for a worker or their next attempt."""


class ListTaskQueues(Query[Sequence[str]]):
    """The queues of tasks (by the tasks' names) that have due or delivered tasks."""

    context: str


# --- parked keys, the schedule, the archive, the audit log ---


class ListParked(Query[Sequence[Row]]):
    """The keys that ordered subscriptions have set aside, the longest parked first."""

    context: str


class ReleaseKeys(Command[Outcome]):
    """Let keys go on in order: first the dead message, with new attempts, then the messages behind it.

    ``keys`` None: all, of one ``subscription`` or of all.
    """

    context: str
    keys: Sequence[str] | None = None
    subscription: str | None = None
    by: Operator


class ReadSchedule(Query[Schedule]):
    """What is scheduled in a context, and who leads it."""

    context: str


class RunJob(Command[datetime]):
    """Run a job now; the answer says when this was first requested. Raises UnknownJob."""

    context: str
    name: str
    by: Operator


class PauseJob(Command[None]):
    """Pause a cron job: it begins no run until it is resumed. Raises UnknownJob, and NotPausable for a duty."""

    context: str
    name: str
    by: Operator


class ResumeJob(Command[None]):
    """Let a cron job go on. One run makes up for missed ones, unless the last is longer ago than its grace."""

    context: str
    name: str
    by: Operator


class ListBatches(Query[Sequence[Manifest]]):
    """The batches in the archive of a context."""

    context: str


class ReadAudit(Query[Sequence[Row]]):
    """What operators did, the newest first. ``id``: to this row. ``action``: such as ``dlq.requeue``."""

    context: str
    actor: str | None = None
    action: str | None = None
    id: str | None = None
    since: datetime | None = None
    before: Before | None = None
    limit: Rows = 50
