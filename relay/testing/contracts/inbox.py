"""The contract of the inbox: receive, settle, audit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

from relay.domain.errors import MalformedMessage
from relay.domain.identity import stand_in_id, view_id
from relay.domain.policies import DeadLetter, DeadLetterClass, Retry, TooLate
from relay.ports import ClaimedMessage, InboxRepository, InboxRow, Inserted

# Long times, so that none of them ends by itself in a slow test.
_LEASE: Final = timedelta(hours=1)
_DELAY: Final = timedelta(hours=1)
_LONG: Final = timedelta(hours=2)
_LITTLE: Final = timedelta(minutes=10)
_VERDICT: Final = DeadLetter("no such vibe", DeadLetterClass.DETERMINISTIC)


async def _mark_all(inbox: InboxRepository, claim: ClaimedMessage) -> bool:
    return await inbox.mark_all_processed([claim]) == [claim]


_WRITES: Final[dict[str, Callable[[InboxRepository, ClaimedMessage], Awaitable[bool]]]] = {
    "renew": lambda inbox, claim: inbox.renew(claim, _LEASE),
    "reject": lambda inbox, claim: inbox.reject(claim, _VERDICT),
    "mark_all_processed": _mark_all,
    "record_error": lambda inbox, claim: inbox.record_error(claim, Retry(_DELAY, "boom")),
    "mark_dead_lettered": lambda inbox, claim: inbox.mark_dead_lettered(claim),
    "release": lambda inbox, claim: inbox.release(claim, _DELAY),
}


class InboxBench(Protocol):
    """An empty inbox, and how time and operators change it."""

    @property
    def inbox(self) -> InboxRepository:
        """The adapter. Its grace for messages that are overdue must be about ten minutes."""

    async def elapse(self, time: timedelta) -> None:
        """Let this time pass for the inbox: move its clock, or move all times in its rows back."""

    async def requeue(self, message_id: UUID) -> None:
        """Do what an operator's requeue does to a dead-lettered message."""

    async def error_of(self, message_id: UUID) -> str | None:
        """Return the error that is recorded about a message."""


class InboxContract:
    """Needs the fixture ``bench``: an `InboxBench`."""

    # --- receive ---

    async def test_a_claim_returns_the_message_as_it_was_inserted(self, bench: InboxBench) -> None:
        moment = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
        about: dict[str, Any] = {"correlation_id": uuid4(), "causation_id": uuid4(), "occurred_at": moment}
        full = _row(1, body=b"\x00\xff", headers={"Actor": "Grüße"}, partition_key="v:1", **about)
        unreadable = _row(2, event_type=None, event_version=None, rejected=_VERDICT)
        rows = [full, unreadable, _row(3, originals={"id": "evt_1", "causation_id": "日本"})]
        await bench.inbox.insert(rows)
        assert [(await _claimed(bench, row)).row for row in rows] == rows

    async def test_an_insert_tells_what_is_new_known_and_done(self, bench: InboxBench) -> None:
        processed, dead, waiting, _ = rows = [_row(seq) for seq in range(1, 5)]
        await bench.inbox.insert([processed, dead, waiting])
        await bench.inbox.mark_all_processed([await _claimed(bench, processed)])
        await bench.inbox.mark_dead_lettered(await _claimed(bench, dead))
        answers = {it.message_id: (it.new, it.done) for it in await bench.inbox.insert(rows)}
        assert [answers[row.message_id] for row in rows] == [
            *((False, True), (False, True), (False, False), (True, False))
        ]
        assert await bench.inbox.claim(processed.message_id, _LEASE) is None
        assert await bench.inbox.insert([]) == []

    async def test_a_repeat_brings_its_place_and_its_reply_subject_only(self, bench: InboxBench) -> None:
        row = _row(1)
        await bench.inbox.insert([row])
        await bench.inbox.insert([row._replace(stream_seq=9, ack_subject="again", body=b"other")])
        await bench.inbox.insert([row._replace(stream_seq=9, ack_subject="", body=b"other")])
        assert (await _claimed(bench, row)).row == row._replace(stream_seq=9, ack_subject="again")

    async def test_an_id_that_is_twice_in_a_batch_is_answered_once(self, bench: InboxBench) -> None:
        row, other = _row(1), _row(2)
        answers = await bench.inbox.insert([row, other, row._replace(stream_seq=3)])
        assert sorted(it.message_id for it in answers) == sorted([row.message_id, other.message_id])
        assert (await _claimed(bench, row)).row.stream_seq == 3

    async def test_an_id_that_another_subscription_has_seen_is_new_to_this_one(self, bench: InboxBench) -> None:
        first = _row(1)
        other = first._replace(subscription="another", stream="OTHER", stream_seq=7)
        third = first._replace(subscription="third")
        # Whoever may publish to one stream may try to have the keys of others.
        taken = _row(2, message_id=view_id("third", first.message_id))
        await bench.inbox.insert([first, taken])
        answers = [(await bench.inbox.insert([row]))[0] for row in (other, third, other, third, first)]
        assert [(it.id, it.new) for it in answers] == [
            (first.id, new) for new in (True, True, False, False, False)
        ]
        assert answers[0].message_id == view_id("another", first.message_id)
        keys = [answers[n].message_id for n in (4, 0, 1)]
        assert len({*keys, taken.message_id}) == 4
        for row, key in zip((first, other, third), keys, strict=True):
            claim = await bench.inbox.claim(key, _LEASE)
            assert claim is not None
            assert (claim.row.id, claim.row.subscription) == (row.id, row.subscription)
            assert (claim.row.stream, claim.row.stream_seq) == (row.stream, row.stream_seq)
            assert claim.row.shown["message_id"] in (row.id, str(row.id))

    async def test_an_unreadable_message_at_a_place_that_had_another_is_new(self, bench: InboxBench) -> None:
        own = _row(1, message_id=stand_in_id("S", 1), rejected=_VERDICT, body=b"one")
        for first in (own, own._replace(subscription="another"), own._replace(subscription="third").apart()):
            second, third = first._replace(body=b"two"), first._replace(body=b"three")
            batches = [[first], [second], [first, _row(2)], [third], [second], [third]]
            answers = [(await bench.inbox.insert(batch))[0] for batch in batches]
            assert [it.new for it in answers] == [True, True, False, True, False, False]
            assert [answers[n].message_id for n in (2, 4, 5)] == [answers[n].message_id for n in (0, 1, 3)]
            claims = [await bench.inbox.claim(answers[n].message_id, _LEASE) for n in (0, 1, 3)]
            assert [it.row.body for it in claims if it is not None] == [b"one", b"two", b"three"]

    async def test_a_row_apart_is_recognised_by_its_id(self, bench: InboxBench) -> None:
        row = _row(1)
        [first] = await bench.inbox.insert([row.apart()])
        again = [*await bench.inbox.insert([row]), *await bench.inbox.insert([row.apart()])]
        assert first.message_id == view_id(row.subscription, row.message_id)
        assert [(it.message_id, it.new) for it in again] == [(first.message_id, False)] * 2

    async def test_a_value_that_cannot_be_stored_refuses_the_whole_batch(self, bench: InboxBench) -> None:
        good = _row(1)
        try:
            await bench.inbox.insert([good, _row(2, partition_key="NUL: \x00")])
        except MalformedMessage:
            assert await bench.inbox.claim(good.message_id, _LEASE) is None
        else:
            raise AssertionError("it was stored")

    async def test_due_counts_what_waits_and_runs_but_not_what_has_failed(self, bench: InboxBench) -> None:
        await bench.inbox.ping()
        waiting, running, failed, done = rows = [_row(seq) for seq in range(1, 5)]
        await bench.inbox.insert([*rows, _row(5, subscription="another")])
        await _claimed(bench, running)
        await bench.inbox.record_error(await _claimed(bench, failed), Retry(_DELAY, "boom"))
        await bench.inbox.mark_all_processed([await _claimed(bench, done)])
        assert [await bench.inbox.due(waiting.subscription, limit) for limit in (1, 10)] == [1, 2]
        assert await bench.inbox.due(waiting.subscription, 10, later=True) == 3
        await bench.elapse(_DELAY + _LITTLE)
        assert await bench.inbox.due(waiting.subscription, 10) == 2

    # --- settle ---

    async def test_a_leased_row_is_claimed_again_only_after_its_lease(self, bench: InboxBench) -> None:
        row = await _inserted(bench)
        first = await _claimed(bench, row)
        await bench.elapse(_LEASE - _LITTLE)
        assert await bench.inbox.claim(row.message_id, _LEASE) is None
        await bench.elapse(2 * _LITTLE)
        second = await _claimed(bench, row)
        assert (first.attempts, second.attempts) == (1, 2)
        assert first.token != second.token

    async def test_a_renewed_claim_lasts_from_then_on(self, bench: InboxBench) -> None:
        row = await _inserted(bench)
        claim = await _claimed(bench, row)
        await bench.elapse(_LEASE - _LITTLE)
        assert await bench.inbox.renew(claim, _LEASE)
        await bench.elapse(_LEASE - _LITTLE)
        assert await bench.inbox.claim(row.message_id, _LEASE) is None

    async def test_of_many_claims_at_once_one_succeeds(self, bench: InboxBench) -> None:
        row = await _inserted(bench)
        claims = await asyncio.gather(*(bench.inbox.claim(row.message_id, _LEASE) for _ in range(8)))
        assert [claim.attempts for claim in claims if claim is not None] == [1]

    async def test_unknown_processed_and_dead_messages_are_not_claimed(self, bench: InboxBench) -> None:
        processed, dead = await _inserted(bench), await _inserted(bench)
        assert await bench.inbox.mark_all_processed([await _claimed(bench, processed)])
        assert await bench.inbox.mark_dead_lettered(await _claimed(bench, dead))
        await bench.elapse(_LONG)
        for id in (uuid4(), processed.message_id, dead.message_id):
            assert await bench.inbox.claim(id, _LEASE) is None

    async def test_a_lost_claim_changes_nothing(self, bench: InboxBench) -> None:
        for name, write in _WRITES.items():
            row = await _inserted(bench)
            lost = await _claimed(bench, row)
            await bench.elapse(_LEASE + _LITTLE)
            held = await _claimed(bench, row)
            assert not await write(bench.inbox, lost), name
            assert await bench.inbox.claim(row.message_id, _LEASE) is None, name
            assert await bench.error_of(row.message_id) is None, name
            assert await bench.inbox.mark_all_processed([held]), name

    async def test_a_settled_claim_settles_nothing_more(self, bench: InboxBench) -> None:
        for name in ("mark_all_processed", "record_error", "mark_dead_lettered", "release"):
            claim = await _claimed(bench, await _inserted(bench))
            assert await _WRITES[name](bench.inbox, claim), name
            for again, write in _WRITES.items():
                assert not await write(bench.inbox, claim), f"{name}, then {again}"

    async def test_of_many_those_are_marked_whose_claim_is_held(self, bench: InboxBench) -> None:
        lost = await _claimed(bench, await _inserted(bench))
        await bench.elapse(_LEASE + _LITTLE)
        again = await bench.inbox.claim(lost.row.message_id, _LEASE)
        held = [await _claimed(bench, await _inserted(bench)) for _ in range(3)]
        marked = await bench.inbox.mark_all_processed([held[0], lost, *held[1:]])
        assert {claim.row.message_id for claim in marked} == {claim.row.message_id for claim in held}
        assert again is not None
        assert await bench.inbox.mark_all_processed([again])

    async def test_an_error_is_recorded_and_the_message_waits_for_its_delay(self, bench: InboxBench) -> None:
        row = await _inserted(bench)
        assert await bench.inbox.record_error(await _claimed(bench, row), Retry(timedelta(), "none", counts=False))
        assert await bench.inbox.record_error(await _claimed(bench, row), Retry(_DELAY, "HTTP 503: boom"))
        assert await bench.error_of(row.message_id) == "HTTP 503: boom"
        await bench.elapse(_DELAY - _LITTLE)
        assert await bench.inbox.claim(row.message_id, _LEASE) is None
        await bench.elapse(_LITTLE)
        assert (await _claimed(bench, row)).attempts == 2

    async def test_a_rejected_message_waits_for_its_dead_letter_only(self, bench: InboxBench) -> None:
        row = await _inserted(bench)
        claim = await _claimed(bench, row)
        assert await bench.inbox.reject(claim, _VERDICT)
        assert await bench.error_of(row.message_id) == _VERDICT.reason
        assert not await bench.inbox.mark_all_processed([claim])
        assert await bench.inbox.release(claim, _DELAY)
        await bench.elapse(_DELAY - _LITTLE)
        assert await bench.inbox.claim(row.message_id, _LEASE) is None
        await bench.elapse(_LITTLE)
        again = await _claimed(bench, row)
        assert (again.row.rejected, again.attempts) == (_VERDICT, 1)

    async def test_a_message_whose_attempts_are_used_up_comes_back_rejected(self, bench: InboxBench) -> None:
        row = await _inserted(bench)
        for attempt in (1, 2):
            claim = await bench.inbox.claim(row.message_id, _LEASE, max_attempts=2)
            assert claim is not None
            assert (claim.attempts, claim.row.rejected) == (attempt, None)
            await bench.elapse(_LEASE + _LITTLE)
        last = await bench.inbox.claim(row.message_id, _LEASE, max_attempts=2)
        assert last is not None
        assert last.row.rejected is not None
        assert (last.attempts, last.row.rejected.kind) == (2, DeadLetterClass.EXHAUSTED)

    async def test_a_message_whose_time_is_over_is_settled_without_a_call(self, bench: InboxBench) -> None:
        soon, later, none = [await _inserted(bench) for _ in range(3)]
        ends = datetime.now(UTC) + 10 * _LONG
        await bench.inbox.note_expiry({soon.message_id: None, later.message_id: ends}, _DELAY)
        await bench.inbox.note_expiry({later.message_id: None}, 10 * _LONG)  # what is noted stays
        claim = await _claimed(bench, soon)
        assert claim.row.rejected is None
        assert await bench.inbox.record_error(claim, Retry(_DELAY, "away"))
        await bench.elapse(_DELAY + _LITTLE)
        for row in (soon, later):
            claim = await _claimed(bench, row)
            assert isinstance(claim.row.rejected, TooLate)
            assert not await bench.inbox.mark_all_processed([claim])
            assert await bench.inbox.expire(claim)
            assert not await bench.inbox.expire(claim)
            assert await bench.inbox.claim(row.message_id, _LEASE) is None
        assert (await _claimed(bench, none)).row.rejected is None
        [known] = await bench.inbox.insert([soon])
        assert (known.new, known.done) == (False, True)

    async def test_a_requeued_message_starts_anew_and_knows_how_often(self, bench: InboxBench) -> None:
        row = await _inserted(bench)
        for requeues in (0, 1, 2):
            claim = await _claimed(bench, row)
            assert (claim.requeues, claim.attempts, claim.row.rejected) == (requeues, 1, None)
            await bench.inbox.reject(claim, _VERDICT)
            await bench.inbox.mark_dead_lettered(claim)
            await bench.requeue(row.message_id)

    # --- audit ---

    async def test_overdue_finds_what_no_queue_has_and_finds_it_once(self, bench: InboxBench) -> None:
        waiting, running, failed, processed, dead = rows = [_row(seq) for seq in range(1, 6)]
        await bench.inbox.insert([*rows, _row(6, subscription="another")])
        await bench.inbox.claim(running.message_id, 2 * _LONG)
        await bench.inbox.record_error(await _claimed(bench, failed), Retry(2 * _LONG, "boom"))
        await bench.inbox.mark_all_processed([await _claimed(bench, processed)])
        await bench.inbox.mark_dead_lettered(await _claimed(bench, dead))
        assert await bench.inbox.overdue(waiting.subscription, 10) == []
        await bench.elapse(_LONG)
        assert await bench.inbox.overdue(waiting.subscription, 10, waited=_LONG) == []
        assert await bench.inbox.overdue(waiting.subscription, 10) == [waiting.message_id]
        assert await bench.inbox.overdue(waiting.subscription, 10) == []

    async def test_overdue_takes_those_first_that_wait_longest(self, bench: InboxBench) -> None:
        old = await _inserted(bench)
        await bench.elapse(_LONG)
        await _inserted(bench)
        await bench.elapse(_LONG)
        assert await bench.inbox.overdue(old.subscription, 1) == [old.message_id]

    async def test_overdue_takes_what_has_failed_apart_from_the_others(self, bench: InboxBench) -> None:
        failed, new = rows = [_row(1), _row(2)]
        await bench.inbox.insert(rows)
        await bench.inbox.record_error(await _claimed(bench, failed), Retry(_LITTLE, "boom"))
        await bench.elapse(_LONG)
        assert await bench.inbox.overdue(new.subscription, 1, failed=False) == [new.message_id]
        assert await bench.inbox.overdue(new.subscription, 1, failed=True) == [failed.message_id]

    # --- window ---

    async def test_the_oldest_of_those_that_have_failed_are_let_go_once(self, bench: InboxBench) -> None:
        rows = []
        for seq in range(1, 5):
            await bench.inbox.insert([row := _row(seq)])
            rows.append(row)
            await bench.elapse(_LITTLE)
        *failed, new = rows
        for row in failed:
            await bench.inbox.record_error(await _claimed(bench, row), Retry(_DELAY, "boom"))
        assert await bench.inbox.let_go(new.subscription, 3, 10) == []
        assert await bench.inbox.let_go("another", 0, 10) == []
        assert await bench.inbox.let_go(new.subscription, 1, 1) == [failed[1].ack_subject]
        assert await bench.inbox.let_go(new.subscription, 1, 10) == [failed[0].ack_subject]
        assert await bench.inbox.let_go(new.subscription, 1, 10) == []
        pages = [page async for page in bench.inbox.waiting(new.subscription, 10)]
        assert sorted(pages[0]) == sorted(it.ack_subject for it in (failed[2], new))
        await bench.elapse(_LONG)
        found = await bench.inbox.finished(new.subscription, new.stream, 0, 9)
        assert [it.stream_seq for it in found] == [1, 2]
        again = await bench.inbox.insert(rows)
        assert [(it.new, it.done) for it in sorted(again, key=lambda it: rows.index(_of(rows, it)))] == [
            *((False, True), (False, True), (False, False), (False, False))
        ]

    async def test_calls_that_hang_are_let_go_if_asked(self, bench: InboxBench) -> None:
        hanging, quick, _ = rows = [_row(seq) for seq in range(1, 4)]
        await bench.inbox.insert([hanging])
        await bench.inbox.claim(hanging.message_id, 2 * _LONG)
        await bench.elapse(_LONG)
        await bench.inbox.insert(rows[1:])
        await bench.inbox.claim(quick.message_id, 2 * _LONG)
        assert await bench.inbox.let_go(quick.subscription, 0, 10) == []
        assert await bench.inbox.let_go(quick.subscription, 0, 10, _DELAY) == [hanging.ack_subject]

    async def test_waiting_pages_through_the_unfinished_messages(self, bench: InboxBench) -> None:
        rows = [_row(seq) for seq in range(1, 8)]
        await bench.inbox.insert([*rows, _row(9, subscription="another")])
        await bench.inbox.mark_all_processed([await _claimed(bench, rows.pop())])
        pages = [page async for page in bench.inbox.waiting(rows[0].subscription, 2)]
        assert all(len(page) <= 2 for page in pages)
        replies = [reply for page in pages for reply in page]
        assert sorted(replies) == [row.ack_subject for row in rows]

    async def test_waiting_leaves_out_the_messages_in_back_off_if_asked(self, bench: InboxBench) -> None:
        await bench.inbox.insert([new := _row(1), failed := _row(2)])
        await bench.inbox.record_error(await _claimed(bench, failed), Retry(_LITTLE, "boom"))
        assert [page async for page in bench.inbox.waiting(new.subscription, 5, due=True)] == [[new.ack_subject]]

    async def test_missing_tells_the_sequences_that_the_inbox_does_not_hold(self, bench: InboxBench) -> None:
        here = _row(3)
        await bench.inbox.insert([here, _row(5), _row(4, stream="OTHER"), _row(6, subscription="another")])
        assert await bench.inbox.missing(here.subscription, here.stream, 1, 7) == [2, 4, 6, 7]

    async def test_finished_tells_the_messages_whose_acknowledgement_may_be_lost(self, bench: InboxBench) -> None:
        dead, waiting, processed = rows = [_row(seq) for seq in (2, 3, 4)]
        await bench.inbox.insert(rows[::-1])
        await bench.inbox.mark_all_processed([await _claimed(bench, processed)])
        await bench.inbox.mark_dead_lettered(await _claimed(bench, dead))
        place = waiting.subscription, waiting.stream
        await bench.elapse(_LITTLE)
        found = await bench.inbox.finished(*place, 0, 9)
        assert [(it.message_id, it.reply) for it in found] == [
            (it.message_id, it.ack_subject) for it in (dead, processed)
        ]
        assert [it.stream_seq for it in await bench.inbox.finished(*place, 2, 4)] == [4]
        assert [it.stream_seq for it in await bench.inbox.finished(*place, 0, 3, on_receipt=True)] == [2, 3]


def _of(rows: Sequence[InboxRow], inserted: Inserted) -> InboxRow:
    return next(row for row in rows if row.message_id == inserted.message_id)


def _row(seq: int, **values: Any) -> InboxRow:
    row = InboxRow(
        message_id=uuid4(),
        subject="up.event.vibe_created.v1",
        subscription="from_up",
        stream="UP",
        stream_seq=seq,
        ack_subject=f"$JS.ACK.UP.d.1.{seq}.{seq}.0.0",
        body=b"{}",
        headers={},
        event_type="vibe_created",
        event_version=1,
    )
    return row._replace(**values)


async def _inserted(bench: InboxBench) -> InboxRow:
    row = _row(1)
    await bench.inbox.insert([row])
    return row


async def _claimed(bench: InboxBench, row: InboxRow) -> ClaimedMessage:
    claim = await bench.inbox.claim(row.message_id, _LEASE)
    assert claim is not None, "the row is free"
    return claim
