"""Makes steps from the rows of a chain, and puts each under the step that caused it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final
from uuid import UUID

from relay.adapters.postgres.attempt_rows import attempts_of
from relay.adapters.postgres.life import Row
from relay.domain.attempts import Attempt, read_attempts
from relay.domain.errors import MalformedMessage
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID, ID, known_originals
from relay.domain.large import Reference
from relay.domain.life import Step, StepKind
from relay.domain.moments import LATEST, readable
from relay.domain.operators import DISCARDED, EXPIRED
from relay.domain.time_axis import Stretch, spans
from relay.domain.traceparent import trace_id
from relay.ops.explain.gathering import MOST, Gathered

#: How deep the tree of a step is.
LEVELS: Final = 50
#: The kind of rows that an operator's action is about, by the beginning of its name.
_ABOUT: Final = {"outbox": StepKind.EVENT, "tasks": StepKind.TASK, "dlq": StepKind.INCIDENT}


@dataclass(slots=True, eq=False)
class _Node:
    """A step that is being put into the tree. ``key``: the id that others name as their cause.

    ``row``: the key of a message's row, by which its dead letters name it.
    """

    step: Step
    key: UUID | int
    cause: UUID | None = None
    correlation: UUID | None = None
    row: UUID | None = None
    below: list[_Node] = field(default_factory=list)

    def built(self, levels: int, later: Callable[[_Node], None]) -> Step:
        """The step with what is below it. ``later`` is called with each that lies deeper than ``levels``."""
        if levels:
            return replace(self.step, children=tuple(node.built(levels - 1, later) for node in self.below))
        for node in self.below:
            later(node)
        return self.step


def steps(found: Gathered) -> list[Step]:
    """Return the steps without a known cause, oldest first, each with everything that followed from it.

    What lies deeper than `LEVELS` is also such a step, and names its cause: readers of a tree call themselves.
    """
    forest = _Forest(found)
    # Only now, because every node must have its place first.
    waiting, roots = list(forest.roots()), list[Step]()
    while waiting:
        roots.append(waiting.pop().built(LEVELS, waiting.append).under(None))
    return sorted(roots, key=lambda it: (it.at is None, it.at and it.at.timestamp()))


class _Forest:
    def __init__(self, found: Gathered) -> None:
        self.events = [_event(context, row) for context, row in found.all("events")]
        self.messages = [_message(context, row) for context, row in found.all("messages")]
        self.incidents = [_incident(context, row) for context, row in found.all("incidents")]
        self.tasks = [_task(context, row) for context, row in found.all("tasks")]
        self.runs = [_run(context, row) for context, row in found.all("runs")]
        actions = (node for context, row in found.all("actions") for node in _actions(context, row))
        self.actions = list(islice(actions, MOST))
        self._publications = {id(node): _publication(node) for node in self.events}
        self._by_key: dict[tuple[StepKind, UUID | int], list[_Node]] = {}
        for node in (*self.events, *self.messages, *self.tasks, *self.incidents):
            for key in {node.key, node.row or node.key}:
                self._by_key.setdefault((node.step.kind, key), []).append(node)

    def roots(self) -> Iterator[_Node]:
        """Put every node under the one that caused it, and yield those without."""
        for node in self.events:
            if (publication := self._publications[id(node)]) is not None:
                node.below.append(publication)
        for node in (*self.runs, *self.events, *self.tasks, *self.messages, *self.incidents, *self.actions):
            above = self._above(node)
            if above is None and node.step.kind is StepKind.ACTION:
                continue  # one action is about many ids, and only some belong to this chain
            if above is None or _within(above, node):
                yield node
            else:
                above.below.append(node)

    def _above(self, node: _Node) -> _Node | None:
        match node.step.kind:
            case StepKind.MESSAGE:
                event = self._published(node) or self._find(StepKind.EVENT, node.key, node)
                return None if event is None else self._publications[id(event)] or event
            case StepKind.INCIDENT:
                return self._find(StepKind.MESSAGE, node.cause, node, only_here=True)
            case StepKind.ACTION:
                return self._find(_ABOUT[node.step.name.partition(".")[0]], node.key, node, only_here=True)
            case StepKind.RUN:
                return None
        return self._cause(node)

    def _published(self, message: _Node) -> _Node | None:
        """The event at the place of a message: producers may give the same id to different events."""
        about = message.step.details
        found = self._by_key.get((StepKind.EVENT, message.key), ())
        place = about["stream"], about["sequence"]
        return next(
            (it for it in found if (it.step.details["stream"], it.step.details["sequence"]) == place), None
        )

    def _cause(self, node: _Node) -> _Node | None:
        """What caused an event or a task: a message, a task, an event that its own service handled, a run."""
        if node.cause is None:
            runs = (run for run in self.runs if run.step.context == node.step.context)
            return next((run for run in runs if run.correlation == node.correlation), None)
        kinds = (StepKind.MESSAGE, StepKind.TASK, StepKind.EVENT)
        return next(filter(None, (self._find(kind, node.cause, node) for kind in kinds)), None)

    def _find(
        self, kind: StepKind, key: UUID | int | None, node: _Node, *, only_here: bool = False
    ) -> _Node | None:
        """A node by its id, of the same context if there is one."""
        found = [] if key is None else self._by_key.get((kind, key), [])
        here = [it for it in found if it.step.context == node.step.context]
        return next(iter(here if only_here else [*here, *found]), None)


def _within(above: _Node, node: _Node) -> bool:
    """Whether ``above`` is ``node`` or below it: ids that name each other as cause must not make a circle."""
    waiting = [node]
    while waiting and (it := waiting.pop()) is not above:
        waiting += it.below
    return bool(waiting) or it is above


# --- when it waited and worked ---


def _spans(
    row: Row,
    *,
    begin: datetime,
    ended: datetime | None,
    outcome: str,
    rounds: int = 0,
    runs: bool = False,
    started: datetime | None = None,
    due: datetime | None = None,
) -> Sequence[Stretch]:
    attempts = attempts_of(
        row, counted=row["attempts"] or 0, rounds=rounds, ended=ended, outcome=outcome, runs=runs
    )
    times = (readable(begin), readable(ended))
    return spans(*times, attempts, datetime.now(UTC), started=readable(started), due=readable(due))


def _spans_of_event(row: Row) -> Sequence[Stretch]:
    """An event has no attempts of its own when it is published: it waits, and is in the stream."""
    begin, ended = readable(row["occurred_at"]), readable(row["published_at"] or row["dead_at"])
    failed = [it for it in read_attempts(row.get("attempt_log")) if it.outcome != "published"]
    delayed = None if failed else readable(row["available_at"])
    return spans(begin, ended, [] if ended else failed, datetime.now(UTC), due=delayed)


def _spans_of_run(row: Row) -> Sequence[Stretch]:
    begin, started, ended = (readable(row[it]) for it in ("opened_at", "started_at", "finished_at"))
    state = "running" if started is not None and ended is None else row["state"]
    attempts = [] if started is None else [Attempt(number=1, outcome=state, began=started, ended=ended)]
    return spans(begin, ended, attempts, datetime.now(UTC))


# --- a row as a step ---


def _event(context: str, row: Row) -> _Node:
    ended = row["published_at"] or row["dead_at"]
    failing = row["publish_attempts"] and not ended
    given_up = row["published_at"] and row["dead_at"]
    ends, died = readable(row["expires_at"]), readable(row["dead_at"])
    stale = given_up and ends is not None and died is not None and ends <= died
    reached = "expired" if stale else "discarded" if given_up else "published" if row["published_at"] else ""
    state = reached or ("dead" if ended else "failing" if failing else "waiting")
    about = {"key": row["partition_key"], "aggregate": f"{row['aggregate_type']}:{row['aggregate_id']}"}
    step = Step(
        kind=StepKind.EVENT,
        context=context,
        id=_shown(row, ID, row["id"]),
        name=f"{row['event_type']} v{row['event_version']}",
        state=state,
        at=readable(row["occurred_at"]),
        ended=readable(ended),
        attempts=row["publish_attempts"],
        error=row["publish_error"],
        trace_id=trace_id(row["traceparent"]),
        details={
            **about,
            **_ids(row),
            "next_attempt": None if ended else readable(row["available_at"]),
            "stream": row["published_stream"],
            "sequence": row["published_seq"],
            "generation": row["generation"],
        },
        archived=row["archived"],
        spans=_spans_of_event(row),
    )
    return _Node(step, row["id"], row["causation_id"], row["correlation_id"])


def _publication(event: _Node) -> _Node | None:
    """Where an event is in its stream; None if it never got there."""
    details, step = event.step.details, event.step
    if details["stream"] is None:
        return None
    place = Step(
        kind=StepKind.PUBLICATION,
        context=step.context,
        id=f"{details['stream']}:{details['sequence']}",
        name=details["stream"],
        state="stored",
        at=step.ended if step.state == "published" else None,
        details={"generation": details["generation"]},
        archived=step.archived,
    )
    return _Node(place, event.key)


def _large(row: Row) -> dict[str, object]:
    """Where the payload of a message is, if it is large."""
    if not row.get("payload_at"):
        return {}
    try:
        return {"payload": Reference.read(row["payload_at"]).where}
    except MalformedMessage:
        return {}


def _message(context: str, row: Row) -> _Node:
    ended = row["processed_at"] or row["dead_lettered_at"]
    held = row["next_attempt_at"] is not None and readable(row["next_attempt_at"]) == LATEST
    failing = "held" if held else "retrying" if row["attempts"] else "waiting"
    given_up = row["processed_at"] and row["dead_letter_class"] in (DISCARDED, EXPIRED)
    state = (
        row["dead_letter_class"]
        if given_up
        else "processed"
        if row["processed_at"]
        else "dead letter"
        if ended
        else "running"
        if row.get("running")
        else failing
    )
    step = Step(
        kind=StepKind.MESSAGE,
        context=context,
        id=_shown(row, ID, row["message_id"]),
        name=row["subscription"] or "",
        state=state,
        at=readable(row["received_at"]),
        ended=readable(ended),
        attempts=row["attempts"],
        error=row["dead_letter_reason"] or row["last_error"],
        trace_id=trace_id(row["traceparent"]),
        details={
            "type": row["event_type"],
            "subject": row["subject"],
            "stream": row["stream"],
            "sequence": row["stream_seq"],
            **_ids(row),
            "next_attempt": None if ended or held else readable(row["next_attempt_at"]),
            "class": row["dead_letter_class"],
            "requeues": row["requeues"],
            **_large(row),
        },
        archived=row["archived"],
        spans=_spans(
            row,
            begin=row["received_at"],
            ended=ended,
            outcome="processed" if row["processed_at"] else "dead",
            rounds=row["requeues"] or 0,
            runs=state == "running",
        ),
    )
    key = row.get("source_id") or row["message_id"]
    return _Node(step, key, row["causation_id"], row["correlation_id"], row["message_id"])


def _incident(context: str, row: Row) -> _Node:
    step = Step(
        kind=StepKind.INCIDENT,
        context=context,
        id=str(row["id"]),
        name=row["subscription"] or "",
        state=row["status"],
        at=readable(row["recorded_at"]),
        ended=readable(row["closed_at"]),
        attempts=row["attempts"],
        error=row["reason"],
        trace_id=trace_id(row["traceparent"]),
        details={"class": row["class"], "message": _shown(row, ID, row["message_id"]), "by": row["closed_by"]},
        archived=row["archived"],
    )
    return _Node(step, row["id"], row["message_id"], row["correlation_id"])


def _task(context: str, row: Row) -> _Node:
    waiting = None if row["finished_at"] else row["next_attempt_at"] or row["available_at"]
    step = Step(
        kind=StepKind.TASK,
        context=context,
        id=_shown(row, ID, row["id"]),
        name=row["type"],
        state=row["status"],
        at=readable(row["created_at"]),
        ended=readable(row["finished_at"]),
        attempts=row["attempts"],
        error=row["last_error"],
        trace_id=trace_id(row["traceparent"]),
        details={
            "queue": row["queue"],
            **_ids(row),
            "started": readable(row["started_at"]),
            "next_attempt": readable(waiting),
        },
        archived=row["archived"],
        spans=_spans(
            row,
            begin=row["created_at"],
            ended=row["finished_at"],
            outcome="completed" if row["status"] == "completed" else "dead",
            runs=row["status"] == "running",
            started=row["started_at"],
            due=row["available_at"],
        ),
    )
    return _Node(step, row["id"], row["causation_id"], row["correlation_id"])


def _run(context: str, row: Row) -> _Node:
    step = Step(
        kind=StepKind.RUN,
        context=context,
        id=str(row["correlation_id"]),
        name=row["job"],
        state=row["state"],
        at=readable(row["started_at"] or row["opened_at"]),
        ended=readable(row["finished_at"]),
        attempts=row["attempts"],
        error=row["error"],
        details={"scheduled_for": row["scheduled_for"]},
        spans=_spans_of_run(row),
    )
    return _Node(step, row["id"], None, row["correlation_id"])


def _actions(context: str, row: Row) -> Iterator[_Node]:
    """An action for each of its ids. Others, such as actions on files of the archive, are left out."""
    about = row["action"].partition(".")[0]
    for text in row["ids"] if about in _ABOUT else ():
        step = Step(
            kind=StepKind.ACTION,
            context=context,
            id=text,
            name=row["action"],
            state="done",
            at=readable(row["at"]),
            details={"by": row["actor"], "note": row["note"]},
        )
        yield _Node(step, int(text) if about == "dlq" else UUID(text))


def _shown(row: Row, name: str, value: object) -> str:
    return known_originals(row.get("originals")).get(name, str(value))


def _ids(row: Row) -> Mapping[str, Any]:
    """The correlation and the cause, as people see them."""
    ids = {"correlation": (CORRELATION_ID, row["correlation_id"]), "cause": (CAUSATION_ID, row["causation_id"])}
    return {key: None if value is None else _shown(row, name, value) for key, (name, value) in ids.items()}
