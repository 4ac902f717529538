"""Queries of other services: request and reply, and each way in which there is no answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StreamConfig

from relay.bus import Nothing, RequestContext, Some
from relay.bus.errors import AnsweredByStream, InvalidAnswer, NoResponder, QueryFailed, QueryTimeout
from relay.devstack import NatsServer
from relay.domain.actor import Actor
from relay.domain.errors import BrokerUnreachable, InvalidPayload, InvalidSubject, PayloadTooLarge
from relay.domain.facts import QueryRefused
from relay.domain.querying import ANSWERED_BY, ERROR_CODE
from relay.domain.traceparent import trace_id
from tests.integration.asking import LoopView, Service, heard

pytestmark = pytest.mark.anyio

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
async def service(nats_server: NatsServer) -> Service:
    return Service(nats_server.url)


@pytest.fixture
async def running(service: Service) -> AsyncIterator[Service]:
    async with service.answering():
        yield service


@pytest.fixture
async def client(nats_server: NatsServer) -> AsyncIterator[Client]:
    client = await nats.connect(nats_server.url)
    yield client
    await client.close()


async def code_of(service: Service, subject: str, payload: object, **options: float) -> str:
    """The code with which a query is refused; its text says nothing of the payload or the handler."""
    async with service.asking() as queries:
        with pytest.raises(QueryFailed) as caught:
            await queries.ask(subject, payload, **options)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    return caught.value.remote


# --- answers ---


async def test_a_query_is_answered_by_the_bus(running: Service) -> None:
    async with running.asking() as queries:
        found = await queries.ask(running.find, {"loop_id": "loop_1"}, answer=LoopView)
        assert found == Some(LoopView(loop_id="loop_1", goal="authenticate"))
        assert await queries.ask(running.find, {"loop_id": "l"}) == Some({"loop_id": "l", "goal": "authenticate"})
        assert await queries.ask(running.find, {"loop_id": "none"}, answer=LoopView) == Nothing()
    assert not running.blocks_loop


async def test_correlation_actor_and_trace_go_along(running: Service) -> None:
    ann = Actor("user_Ännchen", "HUMAN")
    async with running.asking() as queries:
        for correlation in (uuid4(), "req_01HQGX8K9JNPQR5MWTVYZ3F4AB"):
            with RequestContext(correlation_id=correlation, actor=ann, traceparent=TRACE).use():
                assert await queries.ask(running.inspect) == Some({"on_loop": True})
            seen = running.seen.pop()
            assert (seen.correlation_id, seen.causation_id, seen.actor) == (correlation, None, ann)
            assert trace_id(seen.traceparent) == trace_id(TRACE)
            assert seen.traceparent != TRACE
        await queries.ask(running.inspect)
    assert running.seen[0].correlation_id not in (None, correlation)
    assert (running.seen[0].actor, running.seen[0].traceparent) == (None, None)


async def test_unknown_fields_are_ignored(running: Service) -> None:
    async with running.asking() as queries:
        assert await queries.ask(running.find, {"loop_id": "none", "added_later": 1}) == Nothing()


async def test_many_at_once_each_get_their_own_answer(running: Service) -> None:
    async with running.asking() as queries:
        found = await asyncio.gather(*(queries.ask(running.find, {"loop_id": str(n)}) for n in range(60)))
    assert [it.unwrap()["loop_id"] for it in found] == [str(n) for n in range(60)]


async def test_of_two_who_answer_one_gets_a_query(service: Service) -> None:
    async with service.answering(), service.answering(), service.asking() as queries:
        for _ in range(20):
            await queries.ask(service.inspect)
    assert len(service.seen) == 20


async def test_an_answer_that_looks_like_a_puback_is_an_answer(running: Service) -> None:
    async with running.asking() as queries:
        assert await queries.ask(running.inspect, {"what": "puback"}) == Some({"stream": "SR", "seq": 7})


# --- no answer ---


async def test_an_absent_responder_is_told_at_once(service: Service) -> None:
    begun = time.monotonic()
    async with service.asking() as queries:
        with pytest.raises(NoResponder, match=r"NO_RESPONDER: .*loop\.find"):
            await queries.ask(service.find, {"loop_id": "x"}, timeout=300)
    assert time.monotonic() - begun < 100


async def test_a_handler_that_takes_too_long_is_given_up(nats_server: NatsServer) -> None:
    service = Service(nats_server.url, timeout=0.3)
    async with service.answering():
        assert await code_of(service, service.inspect, {"what": "hangs"}) == "QUERY_TIMEOUT"
        assert await code_of(service, service.find, {"loop_id": "hangs"}) == "QUERY_TIMEOUT"
        async with service.asking() as queries:
            assert await queries.ask(service.find, {"loop_id": "none"}) == Nothing()


async def test_the_one_who_asks_waits_no_longer_than_it_says(running: Service) -> None:
    async with running.asking() as queries:
        with pytest.raises(QueryTimeout, match=r" 0\.2 s") as caught:
            await queries.ask(running.inspect, {"what": "hangs"}, timeout=0.2)
    assert caught.value.code == "QUERY_TIMEOUT"


async def test_a_responder_that_goes_in_the_middle_is_told_at_once(service: Service) -> None:
    async with service.answering() as connection, service.asking() as queries:
        asked = asyncio.create_task(queries.ask(service.inspect, {"what": "hangs"}, timeout=60))
        await service.begun.wait()
        await connection.close()
        with pytest.raises(NoResponder):
            await asyncio.wait_for(asked, 60)


async def test_a_connection_lost_while_asking_is_told_at_once(own_nats: NatsServer) -> None:
    service = Service(own_nats.url)
    async with service.answering(), service.asking() as queries:
        asked = asyncio.create_task(queries.ask(service.inspect, {"what": "hangs"}, timeout=60))
        await service.begun.wait()
        own_nats.kill()
        with pytest.raises(BrokerUnreachable):
            await asyncio.wait_for(asked, 60)
        own_nats.launch()
        own_nats.wait()
        await _back(service)


async def _back(service: Service) -> None:
    async with asyncio.timeout(30), service.asking() as queries:
        while True:
            try:
                await heard(queries, service.find)
            except BrokerUnreachable:
                continue
            return


async def test_too_many_queries_are_refused_at_once(running: Service) -> None:
    async with running.asking() as queries:
        hanging = [asyncio.create_task(queries.ask(running.inspect, {"what": "hangs"})) for _ in range(100)]
        await running.begun.wait()
        assert await code_of(running, running.inspect, {"what": "context"}) == "QUERY_BUSY"
        for task in hanging:
            task.cancel()


# --- errors of the handler, and of what is sent ---


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("fails", "QUERY_FAILED"),
        ("exits", "QUERY_FAILED"),
        ("nan", "INVALID_ANSWER"),
        ("no json", "INVALID_ANSWER"),
    ],
)
async def test_a_handler_that_fails_tells_a_code_and_no_text(running: Service, what: str, code: str) -> None:
    assert await code_of(running, running.inspect, {"what": what}) == code
    [fact] = [it for it in running.facts if isinstance(it, QueryRefused)]
    assert (fact.subject, fact.code) == (running.inspect, code)
    assert "secret" not in fact.error


async def test_a_business_rule_refuses_with_its_own_code(running: Service) -> None:
    assert await code_of(running, running.find, {"loop_id": "closed"}) == "LOOP_CLOSED"


async def test_an_answer_larger_than_a_message_is_refused(running: Service) -> None:
    payload = {"what": "large", "size": 1_048_576}
    assert await code_of(running, running.inspect, payload) == "ANSWER_TOO_LARGE"
    async with running.asking() as queries:
        assert await queries.ask(running.find, {"loop_id": "none"}) == Nothing()


@pytest.mark.parametrize("payload", [{}, {"loop_id": 7}, {"loop_id": {"secret": 1}}])
async def test_a_query_that_does_not_fit_is_invalid(running: Service, payload: object) -> None:
    assert await code_of(running, running.find, payload) == "INVALID_QUERY"


async def test_an_actor_that_cannot_be_is_refused(running: Service, client: Client) -> None:
    reply = await client.request(running.inspect, b"{}", headers={"Relay-Actor-Kind": "ROBOT"}, timeout=10)
    assert reply.headers is not None
    assert reply.headers[ERROR_CODE] == "MALFORMED_QUERY"


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff\xfe", b'"x"', b"[" * 500, b'{"loop_id": NaN}'])
async def test_a_query_that_cannot_be_read_is_malformed(running: Service, client: Client, body: bytes) -> None:
    reply = await client.request(running.find, body, timeout=10)
    assert reply.headers is not None
    assert reply.headers[ERROR_CODE] == "MALFORMED_QUERY"
    assert reply.data == b""


async def test_strange_headers_and_reply_subjects_do_no_harm(running: Service, client: Client) -> None:
    strange = {"Relay-Timeout-Ms": "-5", "Relay-Correlation-Id": " x" * 500}
    reply = await client.request(running.find, b'{"loop_id": "none"}', headers=strange, timeout=10)
    assert reply.data == b"null"
    assert reply.headers is not None
    assert reply.headers[ANSWERED_BY] == "sr"
    before = (await client.jetstream().account_info()).api.total
    # Nobody waits for these answers; the second would be a command to the server.
    await client.publish(running.inspect, b"{}")
    await client.publish(running.inspect, b"{}", reply="$JS.API.INFO")
    await client.request(running.find, b'{"loop_id": "none"}', timeout=10)
    assert running.seen == []
    assert (await client.jetstream().account_info()).api.total <= before + 1


async def test_what_cannot_be_sent_is_refused_by_the_one_who_asks(running: Service) -> None:
    async with running.asking() as queries:
        with pytest.raises(InvalidSubject):
            await queries.ask("sr.queries.*", {})
        for payload in ([], "x", {"number": float("nan")}, {"lock": object()}):
            with pytest.raises(InvalidPayload):
                await queries.ask(running.find, payload)
        with pytest.raises(PayloadTooLarge):
            await queries.ask(running.find, {"loop_id": "x" * 1_048_576})
        with pytest.raises(InvalidAnswer, match="int_type"):
            await queries.ask(running.find, {"loop_id": "x"}, answer=int)


# --- a stream over the same subjects ---


async def stream_over(client: Client, service: Service, *, no_ack: bool) -> str:
    name = service.prefix.upper()
    subjects = [f"{service.prefix}.queries.>"]
    config = StreamConfig(name=name, subjects=subjects, no_ack=no_ack, discard=DiscardPolicy.NEW)
    await client.jetstream().add_stream(config)
    return name


async def test_a_stream_without_no_ack_answers_and_that_is_told(service: Service, client: Client) -> None:
    await stream_over(client, service, no_ack=False)
    async with service.asking() as queries:
        with pytest.raises(AnsweredByStream, match="no_ack = true"):
            await queries.ask(service.find, {"loop_id": "x"})


async def test_a_stream_with_no_ack_keeps_the_queries_and_leaves_the_answer_alone(
    running: Service, client: Client
) -> None:
    name = await stream_over(client, running, no_ack=True)
    async with running.asking() as queries:
        for n in range(10):
            assert (await queries.ask(running.find, {"loop_id": str(n)})).unwrap()["loop_id"] == str(n)
    kept = await client.jetstream().get_msg(name, 10)
    assert json.loads(kept.data or b"") == {"loop_id": "9"}


async def test_behind_a_stream_an_absent_responder_is_told_at_once(service: Service, client: Client) -> None:
    """The stream counts as somebody who listens, so the server does not say that nobody answers."""
    await stream_over(client, service, no_ack=True)
    begun = time.monotonic()
    async with service.asking() as queries:
        with pytest.raises(NoResponder):
            await queries.ask(service.find, {"loop_id": "x"}, timeout=300)
    assert time.monotonic() - begun < 100


async def test_others_than_jetrelay_may_answer_behind_a_stream(service: Service, client: Client) -> None:
    """They do not say that they are there; a caller who knows that waits for them."""
    await stream_over(client, service, no_ack=True)
    asked = asyncio.Event()

    async def answer(query: nats.aio.msg.Msg) -> None:
        asked.set()
        with pytest.raises(nats.errors.NoRespondersError):  # they would be missed by now
            await client.request(f"_RELAY.PRESENT.{service.find}", timeout=5)
        await query.respond(b'{"answer": 42}')

    await client.subscribe(service.find, cb=answer)
    await client.flush()
    async with service.asking(presence=False) as queries:
        assert await queries.ask(service.find, {}) == Some({"answer": 42})
    assert asked.is_set()
