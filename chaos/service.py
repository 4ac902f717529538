"""``python -m chaos.service``: the handler service of a run, built on `relay.handler` as applications are.

It answers ``POST /handle`` by the plan of the event and ``GET /healthz`` with 200. It counts the calls about each
event in its database, so that a killed service still knows which call is the first.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import uvicorn
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from chaos.history import History, Plan, Receipt, Source
from chaos.plan import Answer, answer_to, plan_of, slowness_of
from chaos.tables import engine_url
from relay.devstack.ports import LOOPBACK
from relay.handler import AlreadyProcessed, HandlerEndpoint, Poison, Received, RetryLater

_COUNT: Final = text("""
INSERT INTO chaos_calls (message_id) VALUES (:message_id)
ON CONFLICT (message_id) DO UPDATE SET calls = chaos_calls.calls + 1
RETURNING calls
""")
_WRITE: Final = text("INSERT INTO chaos_effects (message_id, source, key) VALUES (:message_id, :source, :key)")
_FINAL: Final = {Answer.OK, Answer.REPEAT, Answer.POISON}
#: How often a call that hangs checks whether to go on, in seconds.
_LOOK_SECONDS: Final = 0.2
#: While this file is in the directory of the records, the slow handler answers nobody.
HANGING: Final = "hanging"
#: While this file is there, the other handler answers 503 to every call.
AWAY: Final = "away"
#: One alert of so many is refused.
_REFUSED_OF_ALERTS: Final = 3
_ANSWERS: Final = {409: Answer.REPEAT, 422: Answer.POISON}
#: How long a call hangs if its caller does not hang up, in seconds; it holds the message meanwhile.
_HANG_SECONDS: Final = 20.0
_CONNECTION: Final[dict[str, Any]] = {
    "connect_timeout": 2,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    # The session of a connection that broke unnoticed must not hold a message for ever.
    "options": "-c idle_in_transaction_session_timeout=30000",
}


class Case(BaseModel):
    """The payload of every event of a run."""

    key: str


class Service:
    """The application: two handlers on one database, and a webhook for alerts that fails now and then.

    Files in the directory of ``records`` disturb them: the slow one hangs while `HANGING` is there, the other
    is away while `AWAY` is.
    """

    def __init__(self, engine: AsyncEngine, history: History, seed: int, records: Path | None = None) -> None:
        self._engine, self._history, self._seed, self._records = engine, history, seed, records
        self._alerts = 0
        self._endpoint = HandlerEndpoint("chaos", engine, {"http.v1": Case, "slow.v1": Case})

    def app(self) -> Starlette:
        """The routes."""
        routes = [
            Route("/handle", self._handle, methods=["POST"]),
            Route("/alerts", self._alert, methods=["POST"]),
            Route("/healthz", lambda _: Response(), methods=["GET"]),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self._engine.dispose()

    async def _handle(self, request: Request) -> Response:
        body = await request.json()
        message_id, source = body["message_id"], _source_of(body["subject"])
        connection, begun = Connections.of(request), self._history.begin(message_id, source)
        answer = Answer.ERROR
        try:
            if source is Source.SLOW:
                await self._linger(message_id, request)
            else:
                self._refuse_if_away()
            async with self._endpoint.receive(request) as received:
                planned = answer_to(message_id, self._seed, await self._count(message_id))
                await self._write(received, source)
                if planned is Answer.HANG:
                    answer = planned
                await _behave(planned, request, plan_of(message_id, self._seed))
            answer = planned
        except HTTPException as refused:
            if answer is not Answer.HANG:
                answer = _ANSWERS.get(refused.status_code, Answer.ERROR)
            raise
        finally:
            lost = None if connection is None else connection.lost
            late = lost is not None and answer in _FINAL
            self._history.end(begun, "late" if late else answer.value, lost)
        if answer is Answer.DROP:
            Connections.drop(request)
        return Response()

    async def _alert(self, request: Request) -> Response:
        """Take an alert, but not each third one."""
        body = await request.json()
        self._alerts += 1
        taken = bool(self._alerts % _REFUSED_OF_ALERTS)
        self._history.write(Receipt(body["context"], body["class"], body["count"], taken))
        return Response(status_code=200 if taken else 503)

    async def _count(self, message_id: str) -> int:
        """Count the call in its own transaction, so that a failed call still counts."""
        async with self._engine.begin() as connection:
            calls: int = (await connection.execute(_COUNT, {"message_id": message_id})).scalar_one()
            return calls

    async def _linger(self, message_id: str, request: Request) -> None:
        """Wait for the planned time, and for as long as the file ``hanging`` exists."""
        gone = await _disconnected(request, slowness_of(message_id, self._seed))
        while not gone and self._is(HANGING):
            gone = await _disconnected(request, _LOOK_SECONDS)
        if gone:
            raise HTTPException(503, "the caller has given up")

    def _is(self, disturbance: str) -> bool:
        return self._records is not None and (self._records / disturbance).exists()

    def _refuse_if_away(self) -> None:
        if self._is(AWAY):
            raise HTTPException(503, "the service is away")

    async def _write(self, received: Received[Case, AsyncSession], source: Source) -> None:
        effect = {"message_id": received.message_id, "source": source.value, "key": received.payload.key}
        await received.session.execute(_WRITE, effect)


async def _behave(answer: Answer, request: Request, plan: Plan) -> None:
    """Do what the plan says after the writes; an exception undoes the writes."""
    match answer:
        case Answer.REPEAT:
            raise AlreadyProcessed("the plan says that this was done before")
        case Answer.POISON:
            raise Poison("the plan says that this cannot be handled")
        case Answer.HANG:
            await _disconnected(request)
            raise HTTPException(503, "the caller has given up")
        case Answer.ERROR if plan is Plan.FLAKY:
            raise RetryLater("the plan says that this call comes too early", delay=1)
        case Answer.ERROR:
            # What always fails is the message's own fault. With a 5xx it would look as if the service were away.
            status = 400 if plan is Plan.NEVER else 503
            raise HTTPException(status, "the plan says that this call fails")


def _source_of(subject: str) -> Source:
    return Source.SLOW if ".slow." in subject else Source.HTTP


async def _disconnected(request: Request, seconds: float = _HANG_SECONDS) -> bool:
    """Wait until the caller hangs up, or until the time limit of a hang; returns whether the caller hung up."""
    try:
        async with asyncio.timeout(seconds):
            while (await request.receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True


class Connections(H11Protocol):
    """The server's side of HTTP connections. An application cannot drop a connection by itself."""

    _open: ClassVar[dict[tuple[str, int] | None, Connections]] = {}

    #: When the caller hung up, on the monotonic clock.
    lost: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Record it by the caller's address, because a request knows nothing else of its connection."""
        super().connection_made(transport)
        self._open[self.client] = self

    def connection_lost(self, exc: Exception | None) -> None:
        """Note when, and forget it."""
        self.lost = time.monotonic()
        self._open.pop(self.client, None)
        super().connection_lost(exc)

    @classmethod
    def of(cls, request: Request) -> Connections | None:
        """The connection of a request; None when it is gone already."""
        client = request.client
        return cls._open.get((client.host, client.port)) if client else None

    @classmethod
    def drop(cls, request: Request) -> None:
        """Break the connection of a request before a byte of the answer has left."""
        connection = cls.of(request)
        if connection is not None:
            connection.transport.abort()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m chaos.service", description="The handler service of a run.")
    parser.add_argument("--database", required=True, help="URL of the service's own database")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True, help="where records of calls are written")
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args(arguments)
    engine = create_async_engine(
        engine_url(options.database),
        connect_args=_CONNECTION,
        pool_pre_ping=True,
        pool_size=20,
        max_overflow=10,
        pool_timeout=2,
    )
    history = History(options.directory / f"calls-{os.getpid()}.jsonl")
    uvicorn.run(
        Service(engine, history, options.seed, options.directory).app(),
        host=LOOPBACK,
        port=options.port,
        http=Connections,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
