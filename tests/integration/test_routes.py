"""Events on their way to one of several streams: by route, by topic, by the stream that a row names."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from nats.js.api import StreamConfig
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from relay.adapters.postgres.row_operations import PostgresOutboxOperations
from relay.domain.errors import InvalidSubject
from relay.domain.operators import Operator
from relay.domain.routing import Route
from tests.integration.publishing import ALL, Relay, engine_url, event, query
from tests.pages import code

pytestmark = pytest.mark.anyio


async def make_stream(relay: Relay, ending: str) -> str:
    """A stream beside the first one. It takes ``<context>.<ending>.*``."""
    name = f"{relay.stream}_{ending.upper()}"
    config = StreamConfig(name=name, subjects=[f"{relay.context}.{ending}.*"])
    await relay.admin(lambda js: js.add_stream(config))
    return name


def due(relay: Relay) -> None:
    query(relay.url, "UPDATE outbox_events SET available_at = now() - interval '1 s' WHERE available_at > now()")


def stored_in(relay: Relay) -> dict[str, Any]:
    rows = query(relay.url, "SELECT id::text, published_stream FROM outbox_events WHERE published_at IS NOT NULL")
    return {row["id"]: row["published_stream"] for row in rows}


async def test_each_event_reaches_the_stream_of_its_route(relay: Relay) -> None:
    await relay.create_stream()
    loops, moves = await make_stream(relay, "loop"), await make_stream(relay, "moved")
    routes = (
        Route(types=["vibe_looped"], subject="{context}.loop.all"),
        Route(topics=[f"{relay.context}.moved.>"], stream=moves),
    )
    looped, plain, moved = relay.add(
        replace(event("v1"), event_type="vibe_looped"), event("v2"), event("v3", topic=f"{relay.context}.moved.x")
    )
    assert await relay.command(routes=routes).drain(ALL) == 3
    assert stored_in(relay) == {str(looped): loops, str(plain): relay.stream, str(moved): moves}


async def test_an_event_in_the_wrong_stream_waits_with_a_code_and_nobody_of_another_key_does(relay: Relay) -> None:
    await relay.create_stream()
    moves = await make_stream(relay, "moved")
    wrong = Route(types=["vibe_looped"], subject="{context}.moved.all", stream=relay.stream)
    bad, behind, other = relay.add(
        replace(event("v1"), event_type="vibe_looped"), event("v1"), event("v2", topic=f"{relay.context}.moved.x")
    )
    publish = relay.command(max_attempts=2, routes=[wrong])
    for turn in range(4):
        assert await publish.drain(ALL) == (0 if turn else 1)
        row = relay.row(bad)
        assert (row["publish_attempts"], row["dead_at"]) == (1, None)
        assert row["publish_error"].startswith(
            f"STREAM_MISMATCH: the subject {relay.context}.moved.all is not that of the stream {relay.stream} ("
        )
        assert stored_in(relay) == {str(other): moves}
        due(relay)
    mended = replace(wrong, stream=moves)
    await relay.drained(relay.command(routes=[mended]))
    assert stored_in(relay) == {str(bad): moves, str(behind): relay.stream, str(other): moves}


# --- a stream that the row names ---


async def test_a_row_names_the_stream_that_must_store_it(relay: Relay) -> None:
    await relay.create_stream()
    moves = await make_stream(relay, "moved")
    topic = f"{relay.context}.moved.x"
    right = relay.add(event("v1", stream=relay.stream), event("v2", topic=topic, stream=moves), event("v3"))
    assert await relay.command().drain(ALL) == 3
    assert list(stored_in(relay).values()) == [relay.stream, moves, relay.stream]
    expected = [message.headers.get("Nats-Expected-Stream") for message in await relay.messages()]
    assert expected == [relay.stream, None]
    assert len(right) == 3


async def test_the_stream_of_a_row_is_stronger_than_that_of_its_route(relay: Relay) -> None:
    await relay.create_stream()
    moves = await make_stream(relay, "moved")
    route = Route(types=["vibe_created"], subject="{context}.moved.all", stream=relay.stream)
    [id] = relay.add(event("v1", stream=moves))
    assert await relay.command(routes=[route]).drain(ALL) == 1
    assert stored_in(relay) == {str(id): moves}


@pytest.mark.parametrize("by_sql", [False, True])
async def test_a_row_of_another_stream_waits_in_order_until_an_operator_mends_it(
    relay: Relay, by_sql: bool
) -> None:
    """Neither is dead, however often it fails; what is behind it waits, and other keys go."""
    await relay.create_stream()
    topic = f"{relay.context}.rwa.x"
    if by_sql:
        bad = relay.insert(aggregate_id="v1", topic=topic, stream="STREAM_RWA")
    else:
        [bad] = relay.add(event("v1", topic=topic, stream="STREAM_RWA"))
    wrong, behind, other = relay.add(event("v2", stream="STREAM_RWA"), event("v1"), event("v3"))
    publish = relay.command(max_attempts=2)
    for _ in range(4):
        await publish.drain(ALL)
        for id, error in ((bad, "STREAM_MISSING"), (wrong, "STREAM_MISMATCH")):
            row = relay.row(id)
            assert (row["publish_attempts"], row["dead_at"]) == (1, None)
            assert row["publish_error"].startswith(f"{error}: ")
        assert stored_in(relay) == {str(other): relay.stream}
        due(relay)
    made = await make_stream(relay, "rwa")  # the mended topology has another name than the rows say
    await publish.drain(ALL)
    assert relay.row(bad)["publish_error"].startswith("STREAM_MISMATCH: ")
    query(relay.url, "UPDATE outbox_events SET stream = %s WHERE id = %s", made, bad)
    query(relay.url, "UPDATE outbox_events SET stream = %s WHERE id = %s", relay.stream, wrong)
    operations = PostgresOutboxOperations(relay.pool.connection)
    outcome = await operations.retry([bad, wrong], Operator("ann"))
    assert outcome.refused == ()
    await relay.drained()
    assert stored_in(relay) == {
        str(bad): made,
        str(wrong): relay.stream,
        str(behind): relay.stream,
        str(other): relay.stream,
    }


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 129, "a\r\nNats-Rollup: all", "ä", "x" * 100_000])
async def test_what_names_no_stream_is_refused_or_dies_alone(relay: Relay, name: str) -> None:
    await relay.create_stream()
    with pytest.raises(InvalidSubject) as refused:
        relay.add(event("v1", stream=name))
    assert refused.value.field == "stream"
    bad = relay.insert(aggregate_id="v1", stream=name)
    [behind] = relay.add(event("v1"))
    await relay.command().drain(ALL)
    assert relay.row(bad)["publish_error"].startswith("unrecoverable: INVALID_SUBJECT [stream]")
    assert relay.row(bad)["dead_at"] is not None
    await relay.command().drain(ALL)
    assert stored_in(relay) == {str(behind): relay.stream}


async def test_the_event_of_the_page_reaches_the_stream_that_it_names(relay: Relay) -> None:
    rwa = StreamConfig(name="STREAM_RWA", subjects=["rwa.>"])
    await relay.admin(lambda js: js.add_stream(rwa))
    engine = create_engine(engine_url(relay.url))
    exec(
        code("docs/how-to/streams.md", "python", 1), {"Session": Session, "engine": engine, "outbox": relay.outbox}
    )
    engine.dispose()
    await relay.drained()
    message = await relay.admin(lambda js: js.get_msg("STREAM_RWA", 1))
    await relay.admin(lambda js: js.delete_stream("STREAM_RWA"))
    assert (message.subject, json.loads(message.data)["payload"]) == ("rwa.inventory.updated", {"left": 3})
