"""Large payloads stay in the outbox: what is published instead, and how consumers get the content."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from relay import Event, Outbox
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.payloads import QUERY_TIMEOUT, NatsPayloads, answering
from relay.adapters.jetstream.query_client import RemoteQueries
from relay.adapters.jetstream.query_server import AnswerQueries
from relay.adapters.payload_files import PayloadFiles
from relay.adapters.postgres.outbox import KeptPayloads
from relay.adapters.postgres.payloads import PostgresPayloads
from relay.commands.fetch_payloads import FetchPayloads
from relay.concurrency import ByteBudget
from relay.domain.errors import InvalidHeader, PayloadDamaged, PayloadMissing, PayloadTooLarge, PayloadUnreachable
from relay.domain.large import MAX_LARGE_BYTES, Reference
from relay.domain.limits import PAYLOAD
from tests.integration.publishing import ALL, Relay, event, query

pytestmark = pytest.mark.anyio

MB = 1024**2
LIMIT = 256 * 1024
KEPT = KeptPayloads("vibespro", LIMIT)


def text(size: int, seed: int = 1) -> str:
    """Text that does not compress well."""
    return random.Random(seed).randbytes(size // 2).hex()


def of_size(size: int) -> dict[str, str]:
    """A payload of exactly so many bytes as JSON."""
    return {"text": text(size - len(json.dumps({"text": ""})) + 1)[: size - len(json.dumps({"text": ""}))]}


def stored(relay: Relay, id: UUID) -> bytes:
    return str(
        query(relay.url, "SELECT payload::text AS it FROM outbox_events WHERE id = %s", id)[0]["it"]
    ).encode()


def add(relay: Relay, payload: Any, key: str = "v1") -> UUID:
    """By SQL, as any program may."""
    return relay.insert(payload=json.dumps(payload), partition_key=key)


async def publish(relay: Relay, *payloads: Any) -> list[Reference]:
    await relay.create_stream()
    ids = [add(relay, it) for it in payloads]
    await relay.drained(relay.command(kept=KEPT))
    found = {it.headers["Nats-Msg-Id"]: it for it in await relay.messages()}
    references = [Reference.of(found[str(id)].headers) for id in ids]
    return [it for it in references if it is not None]


# --- publishing ---


async def test_what_is_above_the_limit_is_published_as_a_reference(relay: Relay) -> None:
    await relay.create_stream()
    payloads = [of_size(size) for size in (LIMIT, LIMIT + 1, 100, MB, 10 * MB, MAX_LARGE_BYTES, 100)]
    ids = [add(relay, it) for it in payloads]
    await relay.drained(relay.command(kept=KEPT))
    messages = await relay.messages()
    assert [it.headers["Nats-Msg-Id"] for it in messages] == [str(id) for id in ids]
    for id, payload, message in zip(ids, payloads, messages, strict=True):
        body, content = json.loads(message.data), stored(relay, id)
        if len(content) <= LIMIT:
            assert PAYLOAD not in message.headers
            assert body["payload"] == payload
            continue
        reference = Reference("vibespro", id, len(content), hashlib.sha256(content).hexdigest())
        assert Reference.of(message.headers) == reference
        assert body["payload"] == {"relay:payload": json.loads(message.headers[PAYLOAD])}
        assert len(message.data) < 2_000


async def test_an_operator_publishes_a_large_one_in_the_same_form(relay: Relay) -> None:
    await relay.create_stream()
    id = add(relay, of_size(MB))
    await relay.command(kept=KEPT).publish(id)
    [message] = await relay.messages()
    assert Reference.read(message.headers[PAYLOAD]).size == len(stored(relay, id))


async def test_nothing_refers_until_the_limit_is_set(relay: Relay) -> None:
    await relay.create_stream()
    [id] = [add(relay, of_size(LIMIT + 1))]
    await relay.drained()
    [message] = await relay.messages()
    assert PAYLOAD not in message.headers
    assert json.loads(message.data)["payload"] == json.loads(stored(relay, id))


async def test_more_than_64_mb_is_refused_wherever_it_enters(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "relay.toml").write_text("[contexts.vibespro]\npayload_limit = '256KB'\n")
    monkeypatch.chdir(tmp_path)
    outbox = Outbox("vibespro")
    with psycopg.connect(relay.url) as connection:
        with pytest.raises(PayloadTooLarge, match="the limit is 67108864"):
            outbox.add(connection, event("v1", payload=of_size(MAX_LARGE_BYTES + 1)))
        large = outbox.add(connection, event("v1", payload=of_size(MAX_LARGE_BYTES)))
    await relay.create_stream()
    by_sql = add(relay, of_size(MAX_LARGE_BYTES + 1), "v2")
    await relay.command(kept=KEPT).drain(ALL)
    assert relay.row(large)["published_at"] is not None
    assert "PAYLOAD_TOO_LARGE" in relay.row(by_sql)["publish_error"]
    assert relay.row(by_sql)["dead_at"] is not None


def test_the_header_is_ours() -> None:
    with pytest.raises(InvalidHeader, match="written by the relay"):
        Outbox("vibespro").add(
            None,
            Event(  # type: ignore[call-overload]
                event_type="x", aggregate_type="a", aggregate_id="1", payload={}, headers={"relay-payload": "{}"}
            ),
        )


# --- fetching ---


@asynccontextmanager
async def served(relay: Relay, directory: Path) -> AsyncIterator[FetchPayloads]:
    """A process that answers, and what fetches in another one."""

    def fetching(name: str, source: Any) -> FetchPayloads:
        return FetchPayloads(PayloadFiles(directory / name, 200 * MB), lambda _: source, ByteBudget(64 * MB))

    connection = NatsConnection(relay.nats_url)
    at_producer = fetching("producer", PostgresPayloads(relay.pool.connection))
    answers = AnswerQueries(
        "vibespro", answering("vibespro", at_producer), connection, relay.facts.append, QUERY_TIMEOUT
    )
    connection.start()
    await answers.start()
    async with RemoteQueries(relay.nats_url) as queries:
        await connection.client(within=20)
        try:
            yield fetching("consumer", NatsPayloads(queries))
        finally:
            await answers.stop()
            await connection.close()


@pytest.mark.parametrize("size", [LIMIT + 1, MB, 10 * MB, MAX_LARGE_BYTES])
async def test_the_content_comes_over_nats(relay: Relay, tmp_path: Path, size: int) -> None:
    [reference] = await publish(relay, of_size(size))
    content = stored(relay, reference.id)
    async with served(relay, tmp_path) as payloads, payloads.room_for(reference):
        assert await payloads.use(reference, lambda it: it == content)
        assert await payloads.between(b"<", reference, b">") == b"<" + content + b">"


async def test_what_was_fetched_is_not_fetched_again(relay: Relay, tmp_path: Path) -> None:
    [reference] = await publish(relay, of_size(MB))
    async with served(relay, tmp_path) as payloads:
        await payloads.fetch(reference)
    assert await payloads.use(reference, len) == reference.size


async def test_a_file_that_was_changed_is_fetched_again(relay: Relay, tmp_path: Path) -> None:
    [reference] = await publish(relay, of_size(MB))
    async with served(relay, tmp_path) as payloads:
        path = await payloads.fetch(reference)
        path.write_bytes(bytes(reference.size))
        assert await payloads.use(reference, lambda it: it) == stored(relay, reference.id)


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("DELETE FROM outbox_events", PayloadMissing),
        ("UPDATE outbox_events SET payload = '{}'", PayloadDamaged),
        (
            "UPDATE outbox_events SET payload = jsonb_build_object('text', reverse(payload ->> 'text'))",
            PayloadDamaged,
        ),
    ],
)
async def test_content_that_is_gone_or_changed_has_its_code(
    relay: Relay, tmp_path: Path, sql: str, error: type[PayloadUnreachable]
) -> None:
    [reference] = await publish(relay, of_size(MB))
    with psycopg.connect(relay.url) as connection:
        connection.execute(sql)
    async with served(relay, tmp_path) as payloads:
        with pytest.raises(PayloadUnreachable) as raised:
            await payloads.fetch(reference)
    assert type(raised.value) is error
    assert list((tmp_path / "consumer").iterdir()) == list((tmp_path / "producer").iterdir()) == []


async def test_nobody_answers(relay: Relay, tmp_path: Path) -> None:
    [reference] = await publish(relay, of_size(MB))
    async with RemoteQueries(relay.nats_url) as queries:
        payloads = FetchPayloads(
            PayloadFiles(tmp_path / "files", 200 * MB), lambda _: NatsPayloads(queries), ByteBudget(MB)
        )
        with pytest.raises(PayloadUnreachable):
            await payloads.fetch(reference)
