"""What the API takes and gives, as its OpenAPI document describes it."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from relay.adapters.postgres.messages import CURSOR, MessageFilter
from relay.adapters.postgres.operating import EventFilter, TaskFilter
from relay.domain.identity import Id, check_id
from relay.domain.incidents import IncidentFilter, IncidentStatus
from relay.domain.policies import DeadLetterClass

Key = TypeVar("Key")
Filter = TypeVar("Filter", bound=BaseModel)

_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)
#: Text that PostgreSQL can hold, as filters have it.
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00]+$")]
Number: TypeAlias = Annotated[int, Field(ge=1, le=2**63 - 1)]
EventStatus = Literal["waiting", "failing", "dead", "published"]
MessageStatus = Literal["waiting", "failing", "running", "parked", "dead", "processed"]
TaskStatus = Literal["pending", "delivered", "running", "completed", "failed", "cancelled"]


def as_id(text: str | None, field: str) -> Id | None:
    """Read an id: a UUID or any other text. Raises InvalidKey."""
    return None if text is None else check_id(text, field).value


# --- filters: what a list is asked for, and what an action is done to ---


class EventsFilter(BaseModel):
    """Which events. ``error``: a code such as ``timeout``, or a part of the text."""

    model_config = _STRICT

    event_type: Text | None = None
    aggregate_type: Text | None = None
    aggregate_id: Text | None = None
    correlation_id: Text | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    error: Text | None = None

    def wanted(self, statuses: list[str]) -> EventFilter:
        """Return the filter of the events in these states."""
        values = {name: getattr(self, name) for name in EventsFilter.model_fields}
        return EventFilter(
            **values | {"correlation_id": as_id(self.correlation_id, "correlation_id")}, statuses=statuses
        )


class MessagesFilter(BaseModel):
    """Which messages. ``subject`` may hold ``*`` and end with ``>``. ``error``: a code, or a part of the text.

    ``key``: the partition key. ``since`` and ``until``: when they were received.
    """

    model_config = _STRICT

    subscription: Text | None = None
    subject: Text | None = None
    event_type: Text | None = None
    key: Text | None = None
    correlation_id: Text | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    error: Text | None = None

    def wanted(self, statuses: list[str]) -> MessageFilter:
        """Return the filter of the messages in these states."""
        values = {name: getattr(self, name) for name in MessagesFilter.model_fields if name != "key"}
        values["correlation_id"] = as_id(self.correlation_id, "correlation_id")
        return MessageFilter(**values, partition_key=self.key, statuses=statuses)


class LettersFilter(BaseModel):
    """Which dead letters. ``class``: why they died. ``reason``: a code, or a part of the text."""

    model_config = _STRICT

    kind: list[DeadLetterClass] = Field(default=[], alias="class")
    subscription: Text | None = None
    event_type: Text | None = None
    reason: Text | None = None
    since: AwareDatetime | None = None
    message_id: Text | None = None
    correlation_id: Text | None = None

    def wanted(self, statuses: list[IncidentStatus]) -> IncidentFilter:
        """Return the filter of the incidents in these states."""
        return IncidentFilter(
            statuses=tuple(statuses),
            kinds=tuple(self.kind),
            subscription=self.subscription,
            event_type=self.event_type,
            reason=self.reason,
            since=self.since,
            message_id=as_id(self.message_id, "message_id"),
            correlation_id=as_id(self.correlation_id, "correlation_id"),
        )


class TasksFilter(BaseModel):
    """Which tasks. ``error``: a code, or a part of the text."""

    model_config = _STRICT

    type: Text | None = None
    queue: Text | None = None
    correlation_id: Text | None = None
    since: AwareDatetime | None = None
    error: Text | None = None

    def wanted(self, statuses: list[str]) -> TaskFilter:
        """Return the filter of the tasks in these states."""
        values = {name: getattr(self, name) for name in TasksFilter.model_fields}
        return TaskFilter(
            **values | {"correlation_id": as_id(self.correlation_id, "correlation_id")}, statuses=statuses
        )


class _Looked(BaseModel):
    """``thorough``: look at all rows, which may take seconds, and not only at the newest of each state."""

    limit: Annotated[int, Field(ge=1, le=500)] = 50
    thorough: bool = False


class _Paged(_Looked):
    """``before``: ``next`` of the page above."""

    before: Number | None = None


class EventsAsked(EventsFilter, _Paged):
    """A page of events. ``status``: all of them if not given."""

    status: list[EventStatus] = []


class MessagesAsked(MessagesFilter, _Looked):
    """A page of messages. ``status``: all of them if not given. ``before``: ``next`` of the page above."""

    status: list[MessageStatus] = []
    before: Annotated[str, StringConstraints(pattern=CURSOR)] | None = None


class LettersAsked(LettersFilter, _Paged):
    """A page of dead letters. ``status``: the open ones if not given."""

    status: list[IncidentStatus] = []


class TasksAsked(TasksFilter, _Paged):
    """A page of tasks. ``status``: all of them if not given."""

    status: list[TaskStatus] = []


class Selection(BaseModel, Generic[Key, Filter]):
    """What an action is done to: ``ids``, or what a ``filter`` finds, or ``all``. And why: ``note``.

    Nothing is done if a filter finds more than ``limit``. ``dry_run``: count, and change nothing.
    """

    model_config = _STRICT

    ids: Annotated[list[Key], Field(min_length=1, max_length=10_000)] | None = None
    filter: Filter | None = None
    all: bool = False
    limit: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    note: Text | None = None
    dry_run: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Selection[Key, Filter]:
        filtered = self.filter is not None and bool(self.filter.model_dump(exclude_defaults=True))
        if (self.ids is not None) + filtered + self.all != 1:
            raise ValueError("say which, in one way: ids, a filter that is not empty, or all")
        return self


# --- answers ---


class Problem(BaseModel):
    """Why something was not done. ``code`` is stable."""

    code: str
    message: str
    field: str | None = None
    hint: str | None = None


class ProblemOut(BaseModel):
    """The body of every error."""

    error: Problem


class ReachOut(BaseModel):
    """The times between which rows were looked at; null where all were."""

    since: AwareDatetime | None
    until: AwareDatetime | None


class PageOut(BaseModel):
    """A page, the newest first. ``next``: ``before`` of the next page, if there is one.

    ``total``: how many the filter finds in all; if it is not ``exact``, there are at least so many. ``reach``:
    between which times rows were looked at, by their state, if not all were; beyond them more may fit.
    """

    items: list[dict[str, Any]]
    total: int
    exact: bool
    reach: dict[str, ReachOut]
    next: int | str | None


class RefusedOut(BaseModel):
    """One thing that was not done, and why."""

    id: str
    error: Problem


class OutcomeOut(BaseModel):
    """What became of each id. ``count``: how many were done, or would be."""

    action: str
    dry_run: bool
    count: int
    done: list[str]
    refused: list[RefusedOut]
