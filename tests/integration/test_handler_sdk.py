"""relay.handler: effect and dedupe row commit together or not at all, and the status says which."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import httpx2
import psycopg
import pytest
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from sqlalchemy import MetaData, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from starlette.applications import Starlette
from starlette.routing import Route

from relay import Event, Outbox, RequestContext
from relay.adapters.http import HttpAccess
from relay.devstack import PostgresServer
from relay.domain.actor import Actor
from relay.domain.errors import BrokerUnreachable, ConfigurationError, UnsupportedTarget
from relay.handler import AlreadyProcessed, DomainError, HandlerEndpoint, Poison, Received, RetryLater
from tests.integration.handler_support import Service, call, effects, metadata, serving
from tests.integration.publishing import engine_url, query
from tests.pages import code
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
DSN = "postgresql+psycopg://"
INDEXED = Event(event_type="indexed", aggregate_type="vibe", aggregate_id="1", payload={})


@pytest.fixture
def url(database_url: str) -> str:
    """A database with the effects table beside ours."""
    metadata.create_all(create_engine(DSN, creator=lambda: psycopg.connect(database_url)))
    return database_url


@pytest.fixture(params=["async", "sync", "starlette"])
async def service(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Service]:
    async with serving(request.param, url) as running:
        yield running


@pytest.fixture
async def plain(url: str) -> AsyncIterator[Service]:
    async with serving("async", url) as running:
        yield running


# --- once in effect ---


async def test_a_message_takes_effect_and_its_repeat_is_answered_409(service: Service) -> None:
    request = call()
    assert await service.statuses(request, request, request) == [200, 409, 409]
    assert [str(id) for id in service.effects()] == [request["message_id"]]
    assert service.processed() == service.effects()


async def test_the_effect_is_committed_before_the_answer_leaves(service: Service) -> None:
    """The handler's transaction ends by a deferred constraint: an answer sent too early would be 200."""
    query(service.url, "ALTER TABLE effects ADD UNIQUE (title) DEFERRABLE INITIALLY DEFERRED")
    assert await service.statuses(call(), call()) == [200, 500]
    assert len(service.processed()) == len(service.effects()) == 1


async def test_calls_at_once_for_one_message_take_effect_once(service: Service) -> None:
    arrived, go = service.hold()
    request = call()
    first = asyncio.create_task(service.post(request))
    await eventually("the first call is inside of the handler", arrived.is_set)
    second = await service.post(request)
    go.set()
    assert (second.status_code, (await first).status_code) == (503, 200)
    assert "now" in second.text
    assert await service.statuses(request) == [409]
    assert len(service.effects()) == 1


@pytest.mark.parametrize(
    ("raised", "status", "reason"),
    [
        (Poison("the title is a lie"), 422, "the title is a lie"),
        (DomainError("no such vibe"), 422, "no such vibe"),
        (AlreadyProcessed("by hand"), 409, "by hand"),
        (HTTPException(418, "teapot"), 418, "teapot"),
        (BrokerUnreachable("NATS is away"), 503, "BrokerUnreachable"),
        (ConnectionRefusedError(), 503, "ConnectionRefusedError"),
        (KeyError("secret detail"), 500, "Internal Server Error"),
    ],
)
async def test_what_the_handler_raises_decides_and_nothing_is_kept(
    service: Service, raised: Exception, status: int, reason: str
) -> None:
    def fail(_event: Any) -> None:
        raise raised

    service.body = fail
    request = call()
    answer = await service.post(request)
    assert (answer.status_code, reason in answer.text) == (status, True), answer.text
    assert service.processed() == service.effects() == []
    service.body = lambda _event: None
    assert await service.statuses(request) == [200]


async def test_an_error_that_is_returned_keeps_nothing_either(url: str) -> None:
    async with serving("starlette", url) as service:
        service.body = lambda _event: JSONResponse({}, status_code=503)
        assert await service.statuses(call()) == [503]
        assert service.processed() == service.effects() == []


async def test_a_handler_that_commits_or_rolls_back_by_itself_breaks_nothing(plain: Service) -> None:
    async def commit_and_fail(event: Any) -> None:
        await event.session.commit()
        raise RuntimeError

    async def roll_back(event: Any) -> None:
        await event.session.rollback()

    plain.body = commit_and_fail
    request = call()
    assert await plain.statuses(request) == [500]
    assert plain.processed() == plain.effects() == []
    plain.body = roll_back
    assert await plain.statuses(request, request) == [200, 409]
    assert plain.effects() == []


async def test_events_of_the_handler_leave_with_its_transaction_and_know_their_cause(service: Service) -> None:
    def emit(event: Any) -> None:
        Outbox("search").add(event.session, INDEXED)
        if event.payload.title == "bad":
            raise Poison("bad")

    service.body = emit
    good = call()
    assert await service.statuses(good, call(payload={"title": "bad"})) == [200, 422]
    [row] = query(service.url, "SELECT correlation_id, causation_id FROM outbox_events")
    assert str(row["correlation_id"]) == good["correlation_id"]
    assert str(row["causation_id"]) == good["message_id"]
    assert RequestContext.current() == RequestContext()


async def test_two_handlers_in_one_database_each_handle_the_message(url: str) -> None:
    request = call()
    async with serving("async", url) as one:
        assert await one.statuses(request) == [200]
    async with serving("async", url, name="others") as other:
        assert await other.statuses(request, request) == [200, 409]


# --- 422 with a reason ---


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (b"{not json", "json_invalid"),
        (b"", "json_invalid"),
        (b"[]", "model_type"),
        (call(message_id=...), "missing at message_id"),
        (call(message_id=7), "value_error at message_id"),
        (call(message_id=""), "value_error at message_id"),
        (call(message_id="s3cret" * 40), "value_error at message_id"),
        (call(event_type=...), "missing at event_type"),
        (call(event_version=0), "greater_than_equal at event_version"),
        (call(payload=...), "missing at payload"),
        (call(occurred_at="yesterday"), " at occurred_at"),
        (call(event_type="vibe_sold"), "vibe_sold.v1 is not handled here"),
        (call(event_version=2), "vibe_created.v2 is not handled here"),
        (call(payload={"titel": "s3cret"}), "missing at payload.title"),
        (call(payload=["s3cret"]), " at payload"),
        (b"x" * 5_000, "longer than 4000 bytes"),
    ],
)
async def test_a_bad_request_is_poison_with_a_reason_that_quotes_nothing(
    url: str, request_: Any, reason: str
) -> None:
    async with serving("async", url, max_body=4_000) as service:
        answer = await service.post(request_)
    assert (answer.status_code, reason in answer.json()["detail"]) == (422, True), answer.text
    assert unquote(answer.headers["relay-reason"]) == answer.json()["detail"]
    assert "s3cret" not in answer.text
    assert service.processed() == []


async def test_optional_fields_may_be_null_or_absent_and_unknown_ones_are_ignored(plain: Service) -> None:
    nulls = call(occurred_at=None, correlation_id=None, causation_id=None, new_field=1)
    absent = call(occurred_at=..., correlation_id=..., causation_id=...)
    assert await plain.statuses(nulls, absent) == [200, 200]


async def test_every_event_can_be_taken(url: str) -> None:
    async with serving("async", url, payloads={"*": dict[str, Any]}) as service:
        assert await service.statuses(call(event_type="x", event_version=9), call(payload=1)) == [200, 422]


# --- 503: it passes ---


@pytest.mark.parametrize(
    ("delay", "header"), [(90, "90"), (timedelta(seconds=1.2), "2"), (0, "1"), (-5, "1"), (10**9, "604800")]
)
async def test_an_endpoint_says_when_it_wants_the_message_again(service: Service, delay: Any, header: str) -> None:
    def later(_event: Any) -> None:
        raise RetryLater("the bank is closed", delay=delay)

    service.body, request = later, call()
    answer = await service.post(request)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, header)
    assert (service.effects(), service.processed()) == ([], [])
    service.body = lambda _event: None
    assert await service.statuses(request) == [200]


async def test_a_database_that_is_away_is_503(url: str, own_postgres: PostgresServer) -> None:
    gone = own_postgres.create_database("gone")
    metadata.create_all(create_engine(DSN, creator=lambda: psycopg.connect(gone)))
    for kind in ("async", "sync"):
        own_postgres.start()
        async with serving(kind, gone) as service:
            assert await service.statuses(call()) == [200]
            own_postgres.kill()
            assert await service.statuses(call(), call()) == [503, 503]


async def test_a_connection_that_breaks_in_the_handler_is_503(service: Service) -> None:
    def cut(_event: Any) -> None:
        query(
            service.url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )

    service.body = cut
    request = call()
    assert await service.statuses(request) == [503]
    assert service.processed() == []
    service.body = lambda _event: None
    assert await service.statuses(request) == [200]


async def test_a_pool_without_a_free_connection_is_503(url: str) -> None:
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.1}
    for kind in ("async", "sync"):
        async with serving(kind, url, engine=options) as service:
            arrived, go = service.hold()
            first = asyncio.create_task(service.post(call()))
            await eventually("the first call has the connection", arrived.is_set)
            assert await service.statuses(call()) == [503]
            go.set()
            assert (await first).status_code == 200


@pytest.mark.parametrize("state", ["40P01", "40001", "55P03", "53300", "57P01", "25006"])
async def test_what_postgresql_says_will_pass_is_503(plain: Service, state: str) -> None:
    async def fail(event: Any) -> None:
        await event.session.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$"))

    plain.body = fail
    answer = await plain.post(call())
    held = state in {"40P01", "40001", "55P03"}
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, held), "a lock spends no attempt"


async def test_an_error_of_the_handlers_own_sql_is_500(plain: Service) -> None:
    async def fail(event: Any) -> None:
        await event.session.execute(effects.insert().values(message_id=None))

    plain.body = fail
    assert await plain.statuses(call()) == [500]


async def test_waiting_calls_do_not_starve_the_one_that_would_let_them_through(url: str) -> None:
    """More calls than threads, one connection: those that wait for it must not hold what its owner needs."""
    # Calls that held each other up would end by the pool's time-out, and with another status.
    async with serving("sync", url, engine={"pool_size": 1, "max_overflow": 0, "pool_timeout": 120}) as service:
        answers = await asyncio.gather(*(service.post(call()) for _ in range(60)))
    assert {answer.status_code for answer in answers} == {200}


# --- signatures ---


async def test_a_signed_request_is_let_in_by_any_of_the_keys(url: str) -> None:
    async with serving("async", url, secret="whsec_bmV3 old") as service:
        for key in ("whsec_bmV3", "old", "stranger old", "whsec_bmV3 old"):
            body = Service.encode(call())
            answer = await service.post(body, headers=service.signed(body, key))
            assert answer.status_code == 200, key


@pytest.mark.parametrize(
    "case", ["none", "stranger", "body", "id", "old", "new", "no number", "version", "no timestamp", "not ascii"]
)
async def test_anything_else_is_401_and_asks_nobody(url: str, case: str) -> None:
    async with serving("async", url, secret="s3cret") as service:
        body = Service.encode(call())
        good = service.signed(body)
        if case == "body":
            body = body.replace(b"First", b"Worst")
        headers = {
            "none": {},
            "stranger": service.signed(body, "stranger"),
            "id": good | {"webhook-id": str(uuid4())},
            "old": service.signed(body, age=301),
            "new": service.signed(body, age=-301),
            "no number": good | {"webhook-timestamp": "now"},
            "version": good | {"webhook-signature": good["webhook-signature"].replace("v1,", "v2,")},
            "no timestamp": {name: value for name, value in good.items() if name != "webhook-timestamp"},
            "not ascii": good | {"webhook-signature": "v1,\u00e4"},
        }.get(case, good)
        answer = await service.client.post("/handle", content=body, headers=list(_bytes(headers)))
    assert answer.status_code == 401, answer.text
    assert service.processed() == service.effects() == []


ACTOR = Actor("ann", "HUMAN")


@pytest.mark.parametrize(
    ("change", "status", "actor"),
    [
        ({}, 200, ACTOR),
        ({"relay-actor-id": "eve"}, 401, None),
        ({"relay-actor-kind": "SYSTEM"}, 401, None),
        ({"relay-attempt": "9"}, 401, None),
        ({"relay-actor-id": None, "relay-actor-kind": None}, 401, None),
        ({"relay-signature": "v2,AAAA"}, 401, None),
        # As a relay of an earlier release signs, or who has taken the signature away.
        ({"relay-signature": None}, 200, None),
        ({"relay-signature": None, "relay-actor-id": "eve"}, 200, None),
    ],
)
@pytest.mark.parametrize("secret", ["s3cret", "old s3cret"])
async def test_an_actor_is_believed_only_if_it_is_signed(
    url: str, secret: str, change: dict[str, str | None], status: int, actor: Actor | None
) -> None:
    seen: list[Actor | None] = []
    async with serving("async", url, secret="s3cret new") as service:
        service.body = lambda received: seen.append(received.actor)
        body = Service.encode(request := call())
        unsigned = {**{name.lower(): it for name, it in ACTOR.headers.items()}, "relay-attempt": "1"}
        headers = unsigned | HttpAccess(secret).headers(request["message_id"], body, unsigned)
        changed = {name: value for name, value in (headers | change).items() if value is not None}
        answer = await service.client.post("/handle", content=body, headers=changed)
    assert answer.status_code == status, answer.text
    assert seen == ([actor] if status == 200 else [])


async def test_without_a_secret_an_actor_is_believed(url: str) -> None:
    seen: list[Actor | None] = []
    async with serving("async", url) as service:
        service.body = lambda received: seen.append(received.actor)
        await service.post(headers=dict(ACTOR.headers))
    assert seen == [ACTOR]


def _bytes(headers: dict[str, str]) -> Any:
    return ((name.encode(), value.encode("latin-1")) for name, value in headers.items())


async def test_four_minutes_of_clock_skew_are_tolerated(url: str) -> None:
    async with serving("async", url, secret="s3cret") as service:
        for age in (240, -240):
            body = Service.encode(call())
            assert (await service.post(body, headers=service.signed(body, age=age))).status_code == 200


async def test_a_signature_of_another_message_is_no_good(url: str) -> None:
    async with serving("async", url, secret="s3cret") as service:
        body = Service.encode(call())
        headers = service.signed(Service.encode(call()))
        other = {**headers, **service.sign_as(headers["webhook-id"], body)}
        assert (await service.post(body, headers=other)).status_code == 422


# --- construction and upkeep ---


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"payloads": {}}, ConfigurationError),
        ({"payloads": {"vibe_created": dict}}, ConfigurationError),
        ({"payloads": {"vibe_created.v0": dict}}, ConfigurationError),
        ({"secret": ""}, ConfigurationError),
        ({"secret": "whsec_a"}, ConfigurationError),
        ({"name": ""}, ValueError),
    ],
)
def test_a_bad_declaration_is_refused_at_start(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        HandlerEndpoint(**{"name": "x", "engine": create_engine(DSN), "payloads": {"*": dict}} | arguments)


async def test_an_engine_in_autocommit_mode_is_refused(url: str) -> None:
    async with serving("async", url, engine={"isolation_level": "AUTOCOMMIT"}) as service:
        assert await service.statuses(call()) == [500]


async def test_the_example_of_the_documentation_works(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    query(url, "CREATE TABLE vibe_index (title text)")
    module: dict[str, Any] = {"__name__": "myservice"}
    exec(code("docs/how-to/http-handlers.md", "python", 1), module)
    transport = httpx2.ASGITransport(app=module["app"])
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        request = call()
        poison = call(payload={"title": " "})
        answers = [await client.post("/handle", json=body) for body in (request, request, poison)]
    assert [answer.status_code for answer in answers] == [200, 409, 422]
    assert query(url, "SELECT title FROM vibe_index") == [{"title": "First light"}]
    await module["engine"].dispose()


async def test_the_example_with_a_table_of_ones_own_works(postgres: PostgresServer) -> None:
    url = postgres.create_database(f"own_{uuid4().hex}")
    engine, mine = create_async_engine(engine_url(url)), MetaData()
    names: dict[str, Any] = {"metadata": mine, "engine": engine, "payloads": {"*": dict}}
    exec(code("docs/how-to/http-handlers.md", "python", 2), names)
    async with engine.begin() as connection:
        await connection.run_sync(mine.create_all)

    async def handle(event: Received[Any, AsyncSession]) -> None:
        await event.session.execute(text("SELECT 1"))

    route = Route("/handle", names["endpoint"].route(handle), methods=["POST"])
    transport = httpx2.ASGITransport(app=Starlette(routes=[route]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        request = call()
        assert [(await client.post("/handle", json=request)).status_code for _ in range(2)] == [200, 409]
    assert len(query(url, "SELECT 1 FROM processed_events")) == 1
    await engine.dispose()


async def test_old_rows_are_pruned_and_younger_ones_kept(url: str) -> None:
    engine = create_engine(DSN, creator=lambda: psycopg.connect(url))
    endpoint = HandlerEndpoint("vibes", engine, {"*": dict})
    insert = "INSERT INTO processed_events VALUES ('vibes', gen_random_uuid(), now() - %s::interval)"
    for age in ("31 days", "30 days 1 hour", "29 days"):
        query(url, insert, age)
    assert await endpoint.prune() == 2
    assert await endpoint.prune(timedelta(days=28)) == 1
    engine.dispose()


async def test_a_service_may_try_its_handler_on_sqlite(tmp_path: Any) -> None:
    from relay.adapters.postgres.processed_events import Claim, claim, processed_events_table

    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    metadata.create_all(engine)
    message_id, table = uuid4(), processed_events_table(metadata)
    for expected in (Claim.OURS, Claim.REPEATED):
        with engine.begin() as connection:
            assert claim(connection, table, "vibes", message_id) is expected
    engine.dialect.name = "mysql"
    with engine.connect() as connection, pytest.raises(UnsupportedTarget, match="mysql"):
        claim(connection, table, "vibes", message_id)
