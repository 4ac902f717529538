"""Checks of what waits in a context: whether it moves, and what fails.

That a backlog stands still is measured. What else was found out is then attached as its likely causes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias

from relay import jobs
from relay.adapters.jetstream.inspection import DurableState
from relay.domain.backlogs import AwayHandler, Waiting
from relay.domain.controls import UNCONTROLLED, Act, Control, Controls, What
from relay.domain.disclosure import stack_of
from relay.domain.findings import Finding, error, warning
from relay.domain.members import Seen
from relay.domain.policies import DeadLetterClass
from relay.domain.queues import QueueView
from relay.domain.standstill import AwaitedVersion, BacklogKind, Failing, LockHolder, Movement, RefusedEvents

#: Texts, each with a remedy, which may be empty.
_Causes: TypeAlias = Iterator[tuple[str, str]]
_RUNBOOK: Final = "docs/how-to/runbook.md"
_FOUND: Final[Mapping[BacklogKind, Callable[..., Finding]]] = {
    BacklogKind.EVENTS: partial(error, "OUTBOX_STALLED"),
    BacklogKind.STREAM: partial(error, "STREAM_STALLED"),
    BacklogKind.MESSAGES: partial(error, "INBOX_STALLED"),
    BacklogKind.LETTERS: partial(error, "LETTERS_STALLED"),
    BacklogKind.TASKS: partial(error, "TASKS_STALLED"),
    BacklogKind.RUNS: partial(error, "CRON_STALLED"),
    BacklogKind.ALERTS: partial(error, "ALERTS_STALLED"),
    BacklogKind.ARCHIVE: partial(error, "ARCHIVE_STALLED"),
}
_WHAT: Final = {
    BacklogKind.EVENTS: "events are not published",
    BacklogKind.STREAM: "messages of the stream are not received",
    BacklogKind.MESSAGES: "messages are not handled",
    BacklogKind.LETTERS: "dead letters are not recorded",
    BacklogKind.TASKS: "tasks are not run",
    BacklogKind.RUNS: "runs are not begun",
    BacklogKind.ALERTS: "alerts are not sent",
    BacklogKind.ARCHIVE: "ended rows do not leave for the archive",
}
_QUEUES: Final = {
    BacklogKind.EVENTS: jobs.PUBLISH_QUEUE,
    BacklogKind.STREAM: jobs.PULL_QUEUE,
    BacklogKind.MESSAGES: jobs.HANDLE_QUEUE,
    BacklogKind.LETTERS: jobs.UPKEEP_QUEUE,
    BacklogKind.RUNS: jobs.CRON_QUEUE,
    BacklogKind.ARCHIVE: jobs.ARCHIVE_QUEUE,
}
#: Findings of servers that hold up everything, and those that hold up events or messages only.
_SERVERS: Final = {
    "DATABASE_UNREACHABLE",
    "BROKER_UNREACHABLE",
    "BROKER_REFUSED",
    "QUEUE_UNREACHABLE",
    "QUEUE_READ_ONLY",
    "QUEUE_KEY_TYPE",
    "GATE_STUCK",
    "CLOCKS_DIFFER",
}
_NO_LEADER: Final = ("no scheduler leads", "run: python -m scheduler")
#: A handler that is away for so long, in seconds, is an error.
AWAY_S: Final = 60.0
_OF_EVENTS: Final = {"STREAM_MISSING", "STREAM_SEALED", "STREAM_REFUSES", "STREAM_FULL"}
_OF_CONSUMERS: Final = {"STREAM_MISSING", "CONSUMER_MISSING", "CONSUMER_PAUSED"}
_OF_KIND: Final = {BacklogKind.EVENTS: _OF_EVENTS, BacklogKind.ARCHIVE: {"STORE_UNREACHABLE"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What was found out about a context beside its backlogs.

    ``found``: what is wrong with its servers. ``consumers``: by subscription. ``leads``: whether a scheduler does.
    ``workers``: how many processes take jobs; None if that is not known. ``subscriptions``: those of the
    configuration. ``held``: why the rows of a stream may not be archived, by stream.
    """

    found: Sequence[Finding] = ()
    consumers: Mapping[str, DurableState] = field(default_factory=dict)
    leads: bool = True
    workers: int | None = None
    subscriptions: Collection[str] = ()
    holders: Sequence[LockHolder] = ()
    refused: RefusedEvents | None = None
    failing: Sequence[Failing] = ()
    away: Sequence[AwayHandler] = ()
    queues: Mapping[str, QueueView] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    controls: Controls = UNCONTROLLED


def stalled(context: str, movement: Movement, around: Surroundings) -> Finding:
    """The finding about a part that stands still, with what is known of the cause, the likeliest first."""
    known = [*causes(movement, around)]
    still = "; later ones went past it"
    if not movement.overtaken:
        still = f"; nothing has moved for {lasted(movement.still_seconds)}"
    first = f"the first, {movement.head}, for {lasted(movement.due_seconds)}"
    why = "; ".join(text for text, _ in known) or "no cause is known"
    logs = f"see the logs of workers and schedulers, and {_RUNBOOK}"
    remedy = next((remedy for _, remedy in known if remedy), logs)
    of_one = movement.kind in {BacklogKind.MESSAGES, BacklogKind.STREAM}
    what = "subscription" if of_one else f"{movement.kind} of"
    subject = f"{what} {'.'.join(filter(None, (context, movement.part)))}"
    text = f"{movement.due} {_WHAT[movement.kind]} though due, {first}{still}. Cause: {why}"
    return _FOUND[movement.kind](subject, text, remedy)


def causes(movement: Movement, around: Surroundings) -> Iterator[tuple[str, str]]:
    """What may hold a part up, each with its remedy, the likeliest first."""
    every = [_renamed, _processes, _servers, _refusals, _holders, _away, _window, _failures, _jobs]
    if movement.kind is BacklogKind.ALERTS:
        # The scheduler sends them itself: no broker, queue or worker takes part.
        every = [_webhook, _holders]
    elif movement.kind is BacklogKind.ARCHIVE:
        every = [_held, _processes, _servers, _holders, _jobs]
    for of in every:
        yield from of(movement, around)


def _webhook(_movement: Movement, around: Surroundings) -> _Causes:
    if around.leads:
        yield (
            "a scheduler leads, so the webhook refuses them or does not answer",
            "mend the webhook; the fact AlertFailed has its answer",
        )
    else:
        yield _NO_LEADER


def _held(movement: Movement, around: Surroundings) -> _Causes:
    why = around.held.get(movement.part.partition("/")[2])
    if why is not None:
        yield why, "see docs/how-to/archive.md"


def _renamed(movement: Movement, around: Surroundings) -> _Causes:
    if movement.kind is BacklogKind.MESSAGES and movement.part not in around.subscriptions:
        yield (
            f"relay.toml has no subscription {movement.part}: it was renamed or removed",
            "name it again until its messages are handled, or discard them",
        )


def _processes(_movement: Movement, around: Surroundings) -> _Causes:
    if not around.leads:
        yield _NO_LEADER
    if around.workers == 0:
        yield "no worker took jobs within the last minute", "run: dramatiq relay.actors"


def _servers(movement: Movement, around: Surroundings) -> _Causes:
    wanted = _SERVERS | _OF_KIND.get(movement.kind, _OF_CONSUMERS)
    for finding in around.found:
        if finding.code in wanted:
            yield f"{finding.subject}: {finding.text} ({finding.code})", finding.remedy


def _refusals(movement: Movement, around: Surroundings) -> _Causes:
    if movement.kind is BacklogKind.EVENTS and around.refused is not None and around.refused.count:
        yield f"refused: {around.refused.reason}", ""


def _holders(_movement: Movement, around: Surroundings) -> _Causes:
    for holder in around.holders:
        since = "" if holder.seconds is None else f" for {lasted(holder.seconds)}"
        remedy = f"end it: SELECT pg_terminate_backend({holder.pid})"
        yield f"{holder.name} (process {holder.pid}) has held {holder.what}{since}", remedy


def _window(movement: Movement, around: Surroundings) -> _Causes:
    consumer = around.consumers.get(movement.part)
    if movement.kind is BacklogKind.STREAM and consumer is not None:
        waiting, most = consumer.unacknowledged, consumer.window
        if 0 < most <= waiting:
            text = f"its window is full: {waiting} of {most} messages are delivered and not acknowledged"
            yield text, "mend what keeps them, or raise max_ack_pending"


def _away(movement: Movement, around: Surroundings) -> _Causes:
    for it in around.away:
        if movement.kind in {BacklogKind.MESSAGES, BacklogKind.STREAM} and it.subscription == movement.part:
            yield f"its handler is away: {reason(it.reason)}", "mend the handler"


def _failures(movement: Movement, around: Surroundings) -> _Causes:
    for it in around.failing:
        if movement.kind in {BacklogKind.MESSAGES, BacklogKind.STREAM} and it.subscription == movement.part:
            yield f"{it.count} messages fail, mostly for: {reason(it.reason)}", "mend the handler"


def _jobs(movement: Movement, around: Surroundings) -> _Causes:
    queue = _QUEUES.get(movement.kind) or jobs.task_queue(movement.part)
    view = around.queues.get(queue)
    if view is not None and view.waiting and not view.in_flight:
        yield f"{view.waiting} jobs wait in {queue}, and no worker takes them", f"start a worker for {queue}"


def received(name: str, consumer: DurableState, worked: float | None) -> Movement:
    """How the messages of a stream come in. ``worked``: since the subscription has worked on any, in seconds.

    While all of the window is being handled, nothing more can come, and all the same the subscription moves.
    """
    moved = [it for it in (consumer.idle_seconds, worked) if it is not None]
    return Movement(
        kind=BacklogKind.STREAM,
        part=name,
        due=consumer.pending,
        due_seconds=consumer.pending_seconds,
        head=f"{consumer.name.partition('/')[0]}:{consumer.next_seq}",
        moved_seconds=min(moved, default=None),
    )


def locked(place: str, holders: Sequence[LockHolder], waited: timedelta) -> Iterator[Finding]:
    """The tables can be read. ``waited``: for how long they could not."""
    held = [f"{it.name} (process {it.pid}) holds {it.what}" for it in holders]
    limit, who = lasted(waited.total_seconds()), "; ".join(held) or "nobody is seen"
    remedy = f"end it: SELECT pg_terminate_backend({holders[0].pid})" if holders else "look into pg_locks"
    yield error("TABLES_LOCKED", place, f"its tables do not answer within {limit}: {who}", remedy)


def refused(place: str, found: RefusedEvents, bound: timedelta) -> Iterator[Finding]:
    """No event is refused again and again."""
    if found.count and found.seconds > bound.total_seconds():
        text = (
            f"{found.count} events are refused again and again, the first is {lasted(found.seconds)} old:"
            f" {reason(found.reason)}"
        )
        yield error("EVENTS_REFUSED", place, text, "mend what it names; relay outbox list --status failing")


def failing(context: str, found: Sequence[Failing], bound: timedelta) -> Iterator[Finding]:
    """Handlers do not fail. It is an error if more messages fail than are handled."""
    for it in found:
        if it.seconds <= bound.total_seconds():
            continue
        text = (
            f"{it.count} messages fail and are tried again, the first for {lasted(it.seconds)}, mostly for:"
            f" {reason(it.reason)}; {it.handled or 'none'} handled in the last {lasted(bound.total_seconds())}"
        )
        remedy = f"mend the handler; relay inbox list --status failing --context {context}"
        yield (error if it.count > it.handled else warning)(
            "HANDLER_FAILING", f"subscription {context}.{it.subscription}", text, remedy
        )


def awaited(context: str, found: Sequence[AwaitedVersion], members: Sequence[Seen]) -> Iterator[Finding]:
    """No message waits for a release that handles its version."""
    for it in found:
        knowing = [one for one in it.known_by(context, members) if one.handles]
        known = ", ".join(f"{one.workers} of release {one.release}" for one in knowing)
        text = (
            f"{it.count} messages of {it.event_type} v{it.event_version} wait for a worker that handles it, the"
            f" first for {lasted(it.seconds)}; workers that do: {known or 'none'}"
        )
        remedy = "finish the deployment" if known else "deploy the release that handles it"
        yield warning("VERSION_AWAITED", f"subscription {context}.{it.subscription}", text, remedy)


def away(context: str, handlers: Sequence[AwayHandler]) -> Iterator[Finding]:
    """Every handler answers."""
    for it in handlers:
        text = f"its handler is away for {lasted(it.seconds)}: {reason(it.reason)}"
        subject, remedy = (
            f"subscription {context}.{it.subscription}",
            "mend it: its messages then go on by themselves",
        )
        if it.seconds >= AWAY_S:
            yield error("HANDLER_AWAY", subject, text, remedy)
        else:
            yield warning("HANDLER_AWAY", subject, text, remedy)


def controlled(context: str, controls: Sequence[Control]) -> Iterator[Finding]:
    """Nothing is paused or limited. What is, is so on purpose; who, why and until when is said here."""
    for it in controls:
        pause = it.act is Act.PAUSE
        subject = {
            What.SUBSCRIPTION: f"subscription {context}.{it.name}",
            What.PUBLISHING: f"publishing of {context}",
        }.get(it.what, f"{it.what.words} {context}.{it.name}")
        name = f" {shlex.quote(it.name)}" if it.name else ""
        verb = f"relay controls {'resume' if pause else 'restore'} {it.what.value}{name} --context {context}"
        if pause:
            yield warning("CONTROL_PAUSED", subject, str(it), verb)
        else:
            yield warning("CONTROL_LIMITED", subject, str(it), verb)


def reason(text: str) -> str:
    """A reason without the lines of its stack."""
    return stack_of(text)[0] or "no reason is recorded"


def lasted(seconds: float) -> str:
    """A time that has passed, in the unit that fits."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# --- dead letters ---


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterLimits:
    """From how many open dead letters on, and from which age on, they are an error."""

    count: int = 100
    age: timedelta = timedelta(days=1)


def letters(context: str, open_ones: Sequence[Waiting], limits: LetterLimits) -> Iterator[Finding]:
    """Somebody decides about dead letters. A snoozed one is not open."""
    groups: dict[tuple[str | None, bool], list[Waiting]] = {}
    for it in open_ones:
        groups.setdefault((it.subscription, it.kind == DeadLetterClass.UNCONFIRMED.value), []).append(it)
    for (name, unconfirmed), found in groups.items():
        count, age = sum(it.count for it in found), max(it.oldest_age_seconds for it in found)
        bad = count >= limits.count or age >= limits.age.total_seconds()
        subject = f"subscription {context}.{name or '?'}"
        text = f"{count} dead letters are open, the first for {lasted(age)}"
        remedy = f"decide about them: relay dlq list --context {context}"
        if unconfirmed:
            subject, text = f"letters of {context}", f"{count} unconfirmed letters are open: no message died so"
            remedy = f"find out who sent them: relay dlq list --class unconfirmed --context {context}"
        yield (error if bad else warning)("DEAD_LETTERS_OPEN", subject, text, remedy)


def dead_events(place: str, count: int, *, block: bool) -> Iterator[Finding]:
    """No event was given up. ``block``: whether a dead event keeps the later ones of its key waiting."""
    if count:
        behind = ", and the later events of their keys wait behind them" if block else ""
        text = f"{count} events were given up{behind}"
        remedy = "relay outbox list --status dead, then retry or skip them"
        yield (error if block else warning)("EVENTS_DEAD", place, text, remedy)


def led(place: str, lease: tuple[str, float] | None, bound: timedelta) -> Iterator[Finding]:
    """The scheduler that led has not died without a successor. ``lease``: who led, and since when no more."""
    if lease is not None and lease[1] > bound.total_seconds():
        text = f"the scheduler {lease[0]} has been silent for {lasted(lease[1])}, and no other leads"
        yield error("SCHEDULER_SILENT", place, text, "run: python -m scheduler")
