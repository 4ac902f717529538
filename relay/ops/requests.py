"""Operators' questions about rows and actions on them, as queries and commands of the command line and the API.

A command names the rows in one of two ways: by ``ids``, or by a filter in ``wanted``. If the filter finds more
than ``limit`` rows, the command changes none. A command may have both: then the filter says how the ids were
chosen. An id that it no longer finds is left as it is and not refused, because no one has named it. For each id
the answer says: done, or why not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, Annotated, Any, Final, Literal, TypeAlias
from uuid import UUID

from pydantic import Field

from relay.adapters.postgres.paging import Page, Row
from relay.bus import Command, Query
from relay.domain.archive import Manifest
from relay.domain.backlogs import Brake, FullInbox, InboxBacklog, OutboxBacklog
from relay.domain.controls import Control, Limit, What
from relay.domain.history import ContextHistory, LastHour, Of
from relay.domain.operators import Operator, Outcome, Selected
from relay.domain.running import RunningRow
from relay.domain.schedule import CronRun, Schedule

#: The backlogs of a context, the brake on its producers, and its full inboxes.
Backlog: TypeAlias = tuple[OutboxBacklog, InboxBacklog, Brake, Sequence[FullInbox]]
#: How many rows there are of each kind, with what the kind is.
Groups: TypeAlias = Sequence[Mapping[str, Any]]
#: A page ends before this key of the order in which the rows are listed.
Before = Annotated[int, Field(ge=1, le=2**63 - 1)]
Rows = Annotated[int, Field(ge=1, le=100_000)]
#: A list that is no page has so many entries over HTTP, and so many at the command line.
LISTED: Final = 500
TYPED: Final = 10_000
#: How long a database may take for one statement of a command that only reads, in seconds.
ASKED_S: Final = 60.0
#: How many entries of such a list, and how many lie before them.
Part = Annotated[int, Field(ge=1, le=100_001)]
Skipped = Annotated[int, Field(ge=0, le=10**9)]


class ReadBacklog(Query[Backlog]):
    """How much waits in a context, since when, and in which state (QRY-050, QRY-051)."""

    context: str


class FindRows(Query[Page[Row]]):
    """The newest rows that a filter finds, or the ``oldest``, without payloads. ``before``: those behind a page.

    ``kind``: the path of a kind of `relay.ops.kinds`, which made the filter ``wanted``. ``thorough``: look at all
    rows, however long it takes. Otherwise a page looks at the first of each state, and its ``reach`` says where
    that ended.
    """

    kind: str
    context: str
    wanted: Any
    limit: Rows = 50
    before: Before | str | None = None
    thorough: bool = True
    oldest: bool = False


class GroupRows(Query[Groups]):
    """How many rows a filter finds of each code of a reason and ``group`` of the kind, the most frequent first.

    ``thorough``: as of `FindRows`; but the answer does not say how far a look went: a page beside it does.
    """

    kind: str
    context: str
    wanted: Any
    thorough: bool = True


class GetRow(Query[Row]):
    """All fields of one row and its history; nothing if there is no such row.

    ``payload``: also the beginning of its payload, and its size as ``payload_bytes``.
    """

    kind: str
    context: str
    id: Any
    payload: bool = False


class ReadPayload(Query[IO[bytes]]):
    """The whole payload of one row, in a file that the caller closes; nothing if there is no such row."""

    kind: str
    context: str
    id: Any


class ActOnRows(Command[Outcome]):
    """An action on rows. All of them change in one transaction, with a row in the audit log that names ``by``.

    ``action``: of the kind, which read the ``arguments``. With ``ids`` and ``wanted``, only those ids are changed
    that the filter still finds; the answer says how many others it finds.
    """

    kind: str
    action: str
    context: str
    ids: Sequence[Any] | None = None
    wanted: Any = None
    limit: Rows = 1_000
    arguments: Mapping[str, Any] = {}
    by: Operator


class StartReplay(Command[int]):
    """Put old messages into the inbox of one subscription; answers the number of the replay. Workers do it.

    ``again``: handle messages again that it has handled. ``rate``: messages a second. Raises ReplayRunning, and
    InvalidRequest for a subscription that the context has not.
    """

    context: str
    subscription: str
    since: datetime | None = None
    until: datetime | None = None
    key: str | None = None
    event_type: str | None = None
    again: bool = False
    rate: Annotated[int, Field(ge=1, le=10_000)] = 100
    by: Operator


class StopReplay(Command[None]):
    """Stop a replay; what it has put into the inbox stays. Raises UnknownReplay."""

    context: str
    id: int
    by: Operator


class ListReplays(Query[Sequence[Row]]):
    """Replays into inboxes of a context, the newest first, and how far each has come. ``id``: only this one."""

    context: str
    id: int | None = None
    limit: Part = LISTED + 1


class KeepSelection(Command[UUID]):
    """Keep which rows were counted for an act, for a day; answers their name."""

    context: str
    selected: Selected


class GetSelection(Query[Selected]):
    """The rows that were counted for an act, and the act that has used them. Raises UnknownSelection."""

    context: str
    id: UUID


class GetDeed(Query[Row]):
    """One act of the audit log with its first rows; nothing if there is none."""

    context: str
    id: Before


class UndoDeed(Command[Outcome]):
    """Take back an act on rows, for all of them that no later act has changed, as one act.

    Raises NotUndoable, and NothingFound if there is no such act.
    """

    context: str
    id: Before
    by: Operator


class ListTaskQueues(Query[Sequence[str]]):
    """The queues of tasks (by the tasks' names) that have due or delivered tasks."""

    context: str


# --- parked keys, the schedule, the archive, the audit log ---


class ListParked(Query[Sequence[Row]]):
    """Keys that ordered subscriptions have set aside, the longest parked first, from ``offset``."""

    context: str
    subscription: str | None = None
    limit: Part = LISTED + 1
    offset: Skipped = 0


class ReleaseKeys(Command[Outcome]):
    """Let keys go on in order: first the dead message, with new attempts, then the messages behind it.

    ``keys`` None: all, of one ``subscription`` or of all. ``counted``: only these, as ``subscription/key``.
    """

    context: str
    keys: Sequence[str] | None = None
    subscription: str | None = None
    counted: Sequence[str] | None = None
    by: Operator


class ReadSchedule(Query[Schedule]):
    """What is scheduled in a context, from the ``offset``th name, and who leads it."""

    context: str
    limit: Part = LISTED + 1
    offset: Skipped = 0


@dataclass(frozen=True, slots=True)
class RunsNow:
    """What runs in a context, and the scheduler that leads it; None while none does."""

    running: Sequence[RunningRow]
    leader: str | None


class ReadRunning(Query[RunsNow]):
    """The messages, tasks and runs of cron jobs of a context that a worker holds now."""

    context: str


class ReadRuns(Query[Sequence[CronRun]]):
    """The last runs of a cron job, the newest first. Empty for a duty of the relay, whose runs leave no rows.

    ``asked``: only the run that answers what was due, or asked for, at this time. Raises UnknownJob.
    """

    context: str
    name: str
    limit: int = Field(default=20, ge=1, le=100)
    asked: datetime | None = None


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


class ListControls(Query[Sequence[Control]]):
    """What is paused or limited in a context now."""

    context: str


class ListSubscriptions(Query[Sequence[Row]]):
    """The subscriptions of a context: their settings, and what is paused or limited. ``name``: only this one.

    Raises UnknownControl.
    """

    context: str
    name: str | None = None


class PauseControl(Command[Control]):
    """Pause something until ``until``, or for ``lasting``, or until it is resumed.

    Raises UnknownControl and InvalidRequest.
    """

    context: str
    what: What
    name: str = ""
    lasting: timedelta | None = None
    until: datetime | None = None
    by: Operator


class ResumeControl(Command[bool]):
    """Let something go on; the answer says whether it was paused."""

    context: str
    what: What
    name: str = ""
    by: Operator


class LimitControl(Command[Limit]):
    """Limit something, or lift its limit; the answer is the limit before.

    Raises UnknownControl and InvalidRequest.
    """

    context: str
    what: What
    name: str
    limit: Limit
    lasting: timedelta | None = None
    until: datetime | None = None
    by: Operator


class RestoreLimit(Command[Limit]):
    """Put the limit back that was there before; the answer is that. Raises UnknownControl if there was none."""

    context: str
    what: What
    name: str
    by: Operator


class ListBatches(Query[Sequence[Manifest]]):
    """Batches in the archive of a context, in order or the newest first, from ``offset``."""

    context: str
    newest: bool = False
    limit: Part = LISTED + 1
    offset: Skipped = 0


class ReadHistory(Query[ContextHistory]):
    """What a context did over time: all series, or that of one subscription or type of tasks.

    Only one series has the times of each part.
    """

    context: str
    span: Literal["1h", "6h", "48h", "90d"] = "1h"
    of: Of | None = None
    name: str = ""


class ReadLastHour(Query[LastHour]):
    """What a context did in the last hour as a whole, by one statement."""

    context: str


class ReadAudit(Query[Sequence[Row]]):
    """What operators did, the newest first. ``id``: to this row. ``action``: such as ``dlq.requeue``."""

    context: str
    actor: str | None = None
    action: str | None = None
    id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: Before | None = None
    limit: Rows = 50
