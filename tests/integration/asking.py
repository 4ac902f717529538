"""What tests of remote queries share: queries of a context, and those who answer and ask, on a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field as attribute
from datetime import timedelta
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, Field

from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.query_client import RemoteQueries
from relay.adapters.jetstream.query_server import AnswerQueries
from relay.bus import Query, QueryBus, RequestContext
from relay.bus.errors import NoResponder
from relay.bus.queries import Answerable
from relay.domain.errors import DomainError
from relay.domain.facts import Fact


class LoopView(BaseModel):
    loop_id: str
    goal: str


class FindLoop(Query[LoopView]):
    loop_id: str = Field(max_length=2_000_000)


class Inspect(Query[dict[str, Any]]):
    what: str = "context"
    size: int = 0


class LoopClosed(DomainError):
    code = "LOOP_CLOSED"


@dataclass
class Service:
    """One who answers. ``seen``: what its handlers saw. Plain functions wait for ``go_on`` when asked to."""

    nats_url: str
    prefix: str = attribute(default_factory=lambda: f"sr{uuid4().hex[:8]}")
    timeout: float = 5.0
    facts: list[Fact] = attribute(default_factory=list)
    seen: list[Any] = attribute(default_factory=list)
    go_on: threading.Event = attribute(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.find, self.inspect, self.wait = (
            f"{self.prefix}.queries.loop.{it}" for it in ("find", "inspect", "wait")
        )
        self.bus = QueryBus()
        self.bus.handles(FindLoop, subject=self.find)(self._find)
        self.bus.handles(Inspect, subject=self.inspect)(self._inspect)
        self.begun = asyncio.Event()

    def _find(self, query: FindLoop) -> LoopView | None:
        self.blocks_loop = threading.current_thread() is threading.main_thread()
        if query.loop_id == "closed":
            raise LoopClosed("goal: secret")
        if query.loop_id == "hangs":
            self.go_on.wait(30)
        return None if query.loop_id == "none" else LoopView(loop_id=query.loop_id, goal="authenticate")

    async def _inspect(self, query: Inspect) -> Any:
        self.begun.set()
        match query.what:
            case "context":
                self.seen.append(RequestContext.current())
                return {"on_loop": threading.current_thread() is threading.main_thread()}
            case "large":
                return {"text": "x" * query.size}
            case "nan":
                return {"number": float("nan")}
            case "no json":
                return {"lock": threading.Lock()}
            case "fails":
                raise ValueError("secret of the payload")
            case "exits":
                raise SystemExit(3)
            case "puback":
                return {"stream": "SR", "seq": 7}
            case _:
                return await asyncio.Event().wait()

    def answers(self, connection: NatsConnection) -> AnswerQueries:
        offered = {
            subject: Answerable(kind, self.bus, self.bus.waits(kind))
            for subject, kind in self.bus.subjects.items()
        }
        return AnswerQueries("sr", offered, connection, self.facts.append, timedelta(seconds=self.timeout))

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[NatsConnection]:
        """Answer, as a worker does, and be heard before the block begins."""
        connection = NatsConnection(self.nats_url)
        answers = self.answers(connection)
        await answers.start()
        async with self.asking() as queries:
            await heard(queries, self.find)
        try:
            yield connection
        finally:
            self.go_on.set()
            await answers.stop()
            await connection.close()

    def asking(self, **options: Any) -> RemoteQueries:
        return RemoteQueries(self.nats_url, **options)


async def heard(queries: RemoteQueries, subject: str) -> None:
    """Wait until somebody answers a subject."""
    async with asyncio.timeout(30):
        while True:
            try:
                await queries.ask(subject, {"loop_id": "none"})
            except NoResponder:
                continue
            return
