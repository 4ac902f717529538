"""The contracts of publishing and of fetching."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol
from uuid import uuid4

from relay.domain.envelopes import MSG_ID
from relay.domain.errors import BrokerUnreachable
from relay.domain.policies import NoStream, NotSent, Published, PublishOutcome, RowRejected
from relay.domain.routing import EXPECTED_STREAM
from relay.ports import Delivery, JetStreamConsumer, JetStreamPublisher, Message

_SOON: Final = timedelta(milliseconds=50)
#: How long a fetch may wait for messages that will certainly come.
_WAIT: Final = timedelta(seconds=20)


class PublisherBench(Protocol):
    """A publisher, and an empty stream ``name`` that takes the subject `subject` and nothing else."""

    @property
    def publisher(self) -> JetStreamPublisher:
        """The adapter."""

    @property
    def subject(self) -> str:
        """The subject that the stream takes."""

    @property
    def name(self) -> str:
        """The name of the stream."""

    async def stored(self) -> Sequence[tuple[bytes, Mapping[str, str]]]:
        """Return body and headers of the stream's messages, in order."""


class PublisherContract:
    """Needs the fixture ``bench``: a `PublisherBench`."""

    async def test_a_message_is_stored_as_it_was_sent(self, bench: PublisherBench) -> None:
        headers = {MSG_ID: str(uuid4()), "Actor": "ann"}
        outcome = await bench.publisher.publish(bench.subject, b'{"n": 1}', headers)
        assert _place(outcome) == (bench.name, 1, False)
        assert await bench.stored() == [(b'{"n": 1}', headers)]

    async def test_a_repeat_is_recognised_by_its_id(self, bench: PublisherBench) -> None:
        message = _message(bench)
        await bench.publisher.publish_all([message])
        again = await bench.publisher.publish_all([_message(bench), message])
        assert _place(again[message.id]) == (bench.name, 1, True)
        assert len(await bench.stored()) == 2

    async def test_the_messages_of_a_key_are_stored_in_their_order(self, bench: PublisherBench) -> None:
        messages = [_message(bench, key=f"key {n % 3}", body=b"%d" % n) for n in range(30)]
        outcomes = await bench.publisher.publish_all(messages)
        bodies = [int(body) for body, _ in await bench.stored()]
        for key in range(3):
            assert [n for n in bodies if n % 3 == key] == list(range(key, 30, 3))
        for seq, body in enumerate(bodies, 1):
            assert _place(outcomes[messages[body].id]) == (bench.name, seq, False)

    async def test_what_lies_behind_a_refused_message_of_its_key_is_not_sent(self, bench: PublisherBench) -> None:
        messages = [_message(bench, key=key) for key in ("a", "a", "a", "b", "", "")]
        messages[1] = messages[1]._replace(subject="nobody.takes.this")
        messages[4] = messages[4]._replace(subject="nobody.takes.this")
        outcomes = await bench.publisher.publish_all(messages)
        kinds = [type(outcomes[message.id]) for message in messages]
        assert kinds == [Published, NoStream, NotSent, Published, NoStream, Published]
        assert len(await bench.stored()) == 3

    async def test_a_message_for_another_stream_is_not_stored_here(self, bench: PublisherBench) -> None:
        elsewhere = _message(bench)._replace(headers={MSG_ID: str(uuid4()), EXPECTED_STREAM: "ELSEWHERE"})
        here = _message(bench)._replace(headers={MSG_ID: str(uuid4()), EXPECTED_STREAM: bench.name})
        outcomes = await bench.publisher.publish_all([elsewhere, here])
        assert outcomes[elsewhere.id] == NoStream.mismatch(bench.subject, "ELSEWHERE")
        assert _place(outcomes[here.id]) == (bench.name, 1, False)

    async def test_a_message_at_fault_is_rejected_and_nobody_else(self, bench: PublisherBench) -> None:
        await bench.publisher.publish_all([_message(bench)])  # from now on, the server's limit counts
        large = _message(bench, body=bytes(bench.publisher.max_payload + 1))
        broken = _message(bench)._replace(headers={"Actor": "ann\r\nNats-Rollup: all"})
        spaced = _message(bench)._replace(subject="two words")
        fine = _message(bench)
        outcomes = await bench.publisher.publish_all([large, broken, spaced, fine])
        kinds = [type(outcomes[message.id]) for message in (large, broken, spaced, fine)]
        assert kinds == [RowRejected, RowRejected, RowRejected, Published]

    async def test_nothing_is_sent_after_the_time_of_the_claim(self, bench: PublisherBench) -> None:
        try:
            await bench.publisher.publish_all([_message(bench)], begun=time.monotonic() - 60)
        except BrokerUnreachable:
            assert await bench.stored() == []
        else:
            raise AssertionError("it was sent")


def _place(outcome: PublishOutcome) -> tuple[str, int, bool]:
    """Where a message was stored, and whether it was there before."""
    assert isinstance(outcome, Published)
    return outcome.stream, outcome.seq, outcome.duplicate


class ConsumerBench(Protocol):
    """A durable consumer on an empty stream, with an ack wait of minutes."""

    @property
    def consumer(self) -> JetStreamConsumer:
        """The adapter."""

    async def send(self, *bodies: bytes) -> None:
        """Store messages in the stream."""

    async def pass_ack_wait(self) -> None:
        """Let the stream deliver messages again, within ten seconds, that are not acknowledged."""


class ConsumerContract:
    """Needs the fixture ``bench``: a `ConsumerBench`."""

    async def test_messages_are_fetched_in_their_order_each_once(self, bench: ConsumerBench) -> None:
        await bench.send(*(b"%d" % n for n in range(1, 6)))
        found = await _fetch(bench, 5, batch=2)
        assert [it.body for it in found] == [b"1", b"2", b"3", b"4", b"5"]
        assert [it.stream_seq for it in found] == [1, 2, 3, 4, 5]
        assert [it.consumer_seq for it in found] == [1, 2, 3, 4, 5]
        assert len({it.reply for it in found}) == 5
        assert await bench.consumer.fetch(5, _SOON) == []

    async def test_a_fetch_waits_for_messages(self, bench: ConsumerBench) -> None:
        fetch = asyncio.create_task(_fetch(bench, 1))
        await asyncio.sleep(0)
        await bench.send(b"late")
        assert [it.body for it in await fetch] == [b"late"]

    async def test_the_state_tells_what_is_delivered_and_what_acknowledged(self, bench: ConsumerBench) -> None:
        await bench.send(b"1", b"2", b"3", b"4")
        one, two, three = await _fetch(bench, 3, batch=3)
        assert await _state(bench) == (0, 3, 3, 3)
        assert (await bench.consumer.state()).undelivered == 1
        await bench.consumer.ack([three.reply])
        await _settled(bench, 2)
        assert await _state(bench) == (0, 3, 2, 3)
        await bench.consumer.ack([one.reply])
        await _settled(bench, 1)
        assert await _state(bench) == (1, 3, 1, 3)
        await bench.consumer.ack([two.reply])
        await _settled(bench, 0)
        assert await _state(bench) == (3, 3, 0, 3)

    async def test_only_what_is_not_acknowledged_comes_again(self, bench: ConsumerBench) -> None:
        await bench.send(b"1", b"2", b"3")
        one, two, three = await _fetch(bench, 3)
        await bench.consumer.ack([one.reply, three.reply])
        await _settled(bench, 1)
        await bench.pass_ack_wait()
        [again] = await _fetch(bench, 1)
        assert (again.stream_seq, again.body) == (two.stream_seq, two.body)
        assert again.consumer_seq != two.consumer_seq
        await bench.consumer.ack([again.reply])
        await _settled(bench, 0)

    async def test_a_message_that_is_given_back_comes_again(self, bench: ConsumerBench) -> None:
        await bench.send(b"1")
        [first] = await _fetch(bench, 1)
        await bench.consumer.nak([first.reply], timedelta(0))
        [again] = await _fetch(bench, 1)
        assert again.stream_seq == first.stream_seq

    async def test_progress_does_not_acknowledge_and_termination_does(self, bench: ConsumerBench) -> None:
        await bench.send(b"1", b"2")
        one, two = await _fetch(bench, 2)
        await bench.consumer.in_progress([one.reply, two.reply])
        await bench.consumer.terminate([two.reply], "unreadable")
        await _settled(bench, 1)
        await bench.consumer.terminate([one.reply], "unreadable")
        await _settled(bench, 0)

    async def test_what_an_open_request_still_delivers_is_handed_over_at_the_end(
        self, bench: ConsumerBench
    ) -> None:
        await bench.send(b"1", b"2", b"3")
        found = [*await bench.consumer.fetch(3, _SOON), *await bench.consumer.finish()]
        found += await _fetch(bench, 3 - len(found))
        assert [it.stream_seq for it in found] == [1, 2, 3]


def _message(bench: PublisherBench, *, key: str = "", body: bytes = b"{}") -> Message:
    id = str(uuid4())
    return Message(id, bench.subject, body, {MSG_ID: id}, key)


async def _fetch(bench: ConsumerBench, count: int, batch: int = 10) -> list[Delivery]:
    """Fetch until there are ``count`` deliveries."""
    found: list[Delivery] = []
    while len(found) < count:
        more = await bench.consumer.fetch(min(batch, count - len(found)), _WAIT)
        assert more, "the message does not come"
        assert len(more) <= batch
        found += more
    return found


async def _state(bench: ConsumerBench) -> tuple[int, int, int, int]:
    state = await bench.consumer.state()
    return state.ack_floor, state.delivered, state.pending, state.consumer_seq


async def _settled(bench: ConsumerBench, pending: int) -> None:
    """Wait until the server has seen the answers, because they are sent without waiting."""
    end = time.monotonic() + _WAIT.total_seconds()
    while (await bench.consumer.state()).pending != pending:
        assert time.monotonic() < end, f"it does not come to {pending} pending"
        await asyncio.sleep(0.005)
