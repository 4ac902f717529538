"""Random answers to a publish, as any client of NATS may send them: none loses an event, ends it, counts for it.

They take the whole way: through nats-server, the parser of the client, and the table of what is under way.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Sequence
from typing import Any

import nats
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.hostile import Raw, publish_raw
from tests.integration.publishing import ALL, Relay, event, outbox_rows
from tests.unit.test_puback import FOREIGN, JSON, LIKE_AN_ANSWER
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

#: A header block, or what is none. The server passes both on.
HEADERS = st.one_of(
    st.none(),
    st.sampled_from(
        [b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 503 No Responders\r\n\r\n", b"NATS/1.0\r\n\r\n", b"XXXX"]
    ),
    st.binary(max_size=30),
)
BODIES = st.one_of(
    st.sampled_from(FOREIGN),
    st.binary(max_size=100),
    st.one_of(JSON, LIKE_AN_ANSWER).map(lambda it: json.dumps(it).encode()),
)
ANSWERS = st.lists(st.tuples(HEADERS, BODIES), min_size=1, max_size=3)
#: As many as one batch takes. Each gets answers of its own.
EVENTS = 300


def answers() -> Sequence[list[tuple[bytes | None, bytes]]]:
    found: list[list[tuple[bytes | None, bytes]]] = []

    @settings(max_examples=EVENTS, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(ANSWERS)
    def collect(some: list[tuple[bytes | None, bytes]]) -> None:
        found.append(some)

    collect()
    assert len(found) > EVENTS / 2
    return found


async def answer_all(relay: Relay, subject: str) -> Any:
    """Answer everything on a subject; returns the client, whose end ends it.

    What has come is answered together, so that all is answered in time also on a busy machine.
    """
    client, turns = await nats.connect(relay.nats_url), itertools.cycle(answers())
    waiting: list[bytes] = []

    async def reply(message: Any) -> None:
        waiting.append(message.reply.encode())
        if subscription.pending_msgs:
            return
        raw = [Raw(to, headers, body) for to in waiting for headers, body in next(turns)]
        waiting.clear()
        await publish_raw(relay.nats_url, raw)

    subscription = await client.subscribe(subject, cb=reply)
    await client.flush()
    return client


async def test_events_whose_only_answers_are_random_wait_and_leave_when_a_stream_takes_them(
    relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    await relay.create_stream()
    subject = f"{relay.context}.nowhere.x"
    relay.add(*[event(f"v{number}", topic=subject) for number in range(EVENTS)])
    client = await answer_all(relay, subject)
    with caplog.at_level(logging.WARNING):
        await relay.command().drain(ALL)
    await client.close()
    rows = outbox_rows(relay.url)
    assert {(row["published_at"], row["dead_at"], row["publish_attempts"]) for row in rows} == {(None, None, 1)}
    assert [it for it in caplog.records if it.exc_info] == []
    await relay.admin(lambda js: js.add_stream(name=f"{relay.stream}_LATE", subjects=[subject]))
    await leave(relay)


async def leave(relay: Relay) -> None:
    async def published() -> bool:
        await relay.command().drain(ALL)
        return not relay.unpublished()

    await eventually("the events have left", published)


async def test_random_answers_beside_those_of_the_stream_count_for_nothing(relay: Relay) -> None:
    await relay.create_stream()
    relay.add(*[event(f"v{number}") for number in range(EVENTS)])
    client = await answer_all(relay, f"{relay.context}.event.>")
    await leave(relay)
    await client.close()
    rows = outbox_rows(relay.url)
    assert {row["published_stream"] for row in rows} == {relay.stream}
    assert sorted(row["published_seq"] for row in rows) == list(range(1, EVENTS + 1))
    assert await relay.ids() == [str(row["id"]) for row in sorted(rows, key=lambda row: row["published_seq"])]
