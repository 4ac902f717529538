"""Bugs for the judge to find. As an actor module, this plants the one that ``PLANTED_BUG`` names in its worker.

Each takes away one thing that a promise of DESIGN §9 rests on. A bug that no longer fits the product raises when
it is planted, so that none is ever found innocent because it was not there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID
from zlib import crc32

from consumer.circuit import KeepCircuit
from consumer.pull import PullMessages
from consumer.recovery import Recovery
from relay.adapters.dramatiq.gates import Gates
from relay.adapters.http import HttpEventHandler
from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.jetstream.stores import Stores
from relay.adapters.postgres import function_connections, inbox, outbox, pipeline, pool, transactions
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.low_water import LowWaterMarks, SearchLimits
from relay.adapters.postgres.sql import statement
from relay.adapters.webhook import Webhook
from relay.commands import deadletter
from relay.commands.deadletter import RouteToDeadLetter
from relay.commands.reconcile import FindMissing
from relay.domain.envelopes import MSG_ID
from relay.domain.errors import AlertRefused
from relay.domain.model import HandlerResult
from relay.domain.policies import Published, Retry
from relay.domain.routing import Routing
from relay.execution import calls
from relay.ports import HandlerRequest, InboxRow, Message

VARIABLE: Final = "PLANTED_BUG"
_NEVER: Final = timedelta(days=3_650)


def none() -> None:
    """Plant nothing: what is found then is the test's own fault."""


def ack_before_commit() -> None:
    """JetStream forgets a batch before the inbox has it, and no audit compares the two afterwards."""
    accept = PullMessages.accept

    async def acknowledge_first(self: PullMessages, deliveries: Sequence[Any], **how: bool) -> int:
        await self.consumer.ack([delivery.reply for delivery in deliveries])
        await self.consumer.state()  # answered after the acknowledgements are taken
        return await accept(self, deliveries, **how)

    async def look_away(self: Recovery, find: FindMissing, page: int | None = None) -> int:
        return 0

    _patch(PullMessages, "accept", acknowledge_first)
    _patch(Recovery, "reconcile", look_away)


def skip_mark() -> None:
    """Some events are published and not marked."""
    mark = outbox._OutboxClaim.mark_published

    async def mark_some(self: Any, acks: Mapping[str, Published]) -> Mapping[str, datetime | str]:
        marked = await mark(self, {id: ack for id, ack in acks.items() if crc32(id.encode()) % 5})
        return dict.fromkeys(acks, datetime.now(UTC)) | marked

    _patch(outbox._OutboxClaim, "mark_published", mark_some)


def drop_one_retry() -> None:
    """A message whose handler failed is never due again."""
    record = PostgresInboxAdapter.record_error

    async def record_for_ever(self: PostgresInboxAdapter, claim: Any, disposition: Retry) -> bool:
        return await record(self, claim, replace(disposition, delay=_NEVER))

    _patch(PostgresInboxAdapter, "record_error", record_for_ever)


def publish_outside_lane_lock() -> None:
    """Several jobs publish a shard at once, none holds its lanes, and rows are taken as they come."""
    open_gate = Gates.open

    async def open_always(self: Gates, duty: str, *, force: bool = False, **options: Any) -> Any:
        return await open_gate(self, duty, force=force or duty.startswith("publish:"), **options)

    async def renew_always(self: Gates, *_: Any) -> bool:
        return True

    _patch(Gates, "open", open_always)
    # A job that another has replaced would end.
    _patch(Gates, "_renew", renew_always)
    _rewrite(pool, "outbox/lock_lanes", "WHERE pg_try_advisory_xact_lock(relay_publisher_locks(), lane)", "")
    _rewrite(pool, "outbox/claim", "ORDER BY e.seq\n", "ORDER BY random()\n")
    _rewrite(pool, "outbox/claim", "ORDER BY seq", "ORDER BY random()")
    _rewrite(pool, "outbox/claim", "skipped.seq < claimed.seq", "false")


def settle_twice() -> None:
    """A message is queued twice, and neither claim nor token nor a look at the row keeps the two apart."""
    hand_over = PullMessages._hand_over

    async def hand_over_twice(self: PullMessages, ids: Sequence[UUID]) -> None:
        await hand_over(self, [*ids, *ids])

    _patch(PullMessages, "_hand_over", hand_over_twice)
    unfinished, fence = (
        "num_nonnulls(i.processed_at, i.dead_lettered_at) = 0",
        "AND claim_token = %(token)s AND num_",
    )
    for module in (inbox, pipeline):
        _rewrite(module, "inbox/claim", unfinished, "i.dead_lettered_at IS NULL")
        _rewrite(module, "inbox/claim", "relay_is_free(i.claimed_until,", "relay_is_free(NULL,")
    for module, name in (
        (inbox, "inbox/mark_processed"),
        (transactions, "inbox/settle"),
        (pipeline, "inbox/settle"),
    ):
        _rewrite(module, name, f"{fence}nonnulls(processed_at) = 0", "")


def store_twice() -> None:
    """Every message goes to the stream once more, under another id."""
    publish_all = NatsJetStreamPublisher.publish_all

    async def publish_all_twice(self: NatsJetStreamPublisher, messages: Sequence[Message], *begun: Any) -> Any:
        again = [message._replace(headers={**message.headers, MSG_ID: f"{message.id}.7"}) for message in messages]
        outcomes = await publish_all(self, messages, *begun)
        await publish_all(self, again, *begun)
        return outcomes

    _patch(NatsJetStreamPublisher, "publish_all", publish_all_twice)


def ask_twice() -> None:
    """A service is asked, and asked again while it thinks."""
    handle = HttpEventHandler.handle

    async def handle_twice(self: HttpEventHandler, request: HandlerRequest) -> HandlerResult:
        one, _ = await asyncio.gather(handle(self, request), handle(self, request))
        return one

    _patch(HttpEventHandler, "handle", handle_twice)


def believe_in_the_lease() -> None:
    """A worker is told that its lease is renewed, and it is not."""

    async def believe(self: PostgresInboxAdapter, claim: Any, lease: timedelta) -> bool:
        return True

    _patch(PostgresInboxAdapter, "renew", believe)


def swallow_dead_letter() -> None:
    """A message is dead-lettered and nobody is told."""

    async def swallow(self: RouteToDeadLetter, message: Any, verdict: Any) -> None:
        return

    _patch(RouteToDeadLetter, "route", swallow)


def trust_old_marks() -> None:
    """A worker thinks that it has published what a restored database numbers again. Each claim is a slow one."""
    begin = LowWaterMarks.__init__

    def begin_eagerly(self: LowWaterMarks, *_: Any) -> None:
        begin(self, SearchLimits(slow=-1.0, together=0.0, pause=0.0))

    async def never(self: LowWaterMarks, conn: Any) -> bool:
        return False

    _patch(LowWaterMarks, "__init__", begin_eagerly)
    _patch(LowWaterMarks, "_set_back", never)
    _rewrite(pool, "outbox/lock_lanes", "pg_relation_filepath('outbox_events_seq_seq')", "''::text")


def ignore_refusals() -> None:
    """An alert that the webhook refuses counts as sent."""
    send = Webhook.send

    async def send_anyhow(self: Webhook, body: bytes) -> None:
        with suppress(AlertRefused):
            await send(self, body)

    _patch(Webhook, "send", send_anyhow)


def count_outages() -> None:
    """While a handler is away, its messages lose attempts."""

    async def take_it(self: KeepCircuit, claim: Any, verdict: Any) -> Any:
        return verdict

    _patch(KeepCircuit, "judged", take_it)


def one_view() -> None:
    """What one subscription has seen, all have seen."""

    def as_it_is(self: InboxRow) -> InboxRow:
        return self

    _patch(InboxRow, "apart", as_it_is)


def letters_of_letters() -> None:
    """A letter that dies becomes a letter."""
    init = RouteToDeadLetter.__init__

    def forget_streams(self: RouteToDeadLetter, *places: Any, **named: Any) -> None:
        init(self, *places, **{**named, "letter_streams": ()})

    _patch(RouteToDeadLetter, "__init__", forget_streams)
    assert callable(deadletter.is_letter)
    deadletter.is_letter = lambda *_: False


def confused_deputy() -> None:
    """The fleet publishes to any subject that a row names."""

    def let_it_go(self: Routing, topic: str) -> None:
        return

    _patch(Routing, "_check_own", let_it_go)


def believe_any_answer() -> None:
    """What has the form of a PubAck is one."""

    def surely(self: Stores, stream: str, subject: str) -> bool:
        return True

    _patch(Stores, "sure", surely)


def sessions_as_they_come() -> None:
    """Our sessions have the settings that somebody gave to our role."""
    _rewrite(
        pool,
        "session/ours",
        "set_config('default_transaction_read_only', 'off', false)",
        "set_config('a.b', '', false)",
    )


def sessions_as_they_were() -> None:
    """A session goes to the next function as the last one left it."""
    assert function_connections._CLEANING
    function_connections._CLEANING = ()


def only_exceptions() -> None:
    """What is no `Exception` ends the process."""
    usual = calls.answer

    def fall_over(error: BaseException) -> HandlerResult:
        if not isinstance(error, Exception):
            os._exit(1)
        return usual(error)

    calls.answer = fall_over


def never_mend() -> None:
    """A gate that another program has closed stays closed."""

    async def look_away(self: Gates, duties: Sequence[str]) -> Sequence[str]:
        return ()

    _patch(Gates, "mend", look_away)


BUGS: Final[dict[str, Callable[[], None]]] = {
    bug.__name__: bug
    for bug in (
        none,
        ack_before_commit,
        skip_mark,
        drop_one_retry,
        publish_outside_lane_lock,
        settle_twice,
        store_twice,
        ask_twice,
        believe_in_the_lease,
        swallow_dead_letter,
        trust_old_marks,
        ignore_refusals,
        count_outages,
        one_view,
        letters_of_letters,
        confused_deputy,
        believe_any_answer,
        sessions_as_they_come,
        sessions_as_they_were,
        only_exceptions,
        never_mend,
    )
}


def _patch(owner: type, name: str, function: Callable[..., Any]) -> None:
    """Replace a method that must be there."""
    assert callable(getattr(owner, name)), f"{owner.__name__}.{name} is gone: mend the bug"
    setattr(owner, name, function)


def _rewrite(module: Any, name: str, old: str, new: LiteralString) -> None:
    """Have a module use a changed statement; what is changed must be there."""
    before: Callable[[str], str] = module.statement
    assert old in before(name), f"{name}.sql has changed: mend the bug"
    module.statement = lambda asked: before(asked).replace(old, new) if asked == name else before(asked)


if VARIABLE in os.environ:
    assert pool.statement is statement, "planted twice"
    BUGS[os.environ[VARIABLE]]()
