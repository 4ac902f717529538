"""``python -m relay.devstack.sample``: a handler service to try things with.

It answers ``POST /handle`` (SDS-047 §12). The field ``verdict`` of the payload says how:

    ok        200, and the effect is written; the same as no verdict
    already   409, as if this had been done before
    poison    422, as if the payload could not be understood
    flaky     503 twice, then ok
    slow      no answer to the first call until the caller gives up, then ok

The effect is a row whose key is the UUID of the call's ``Idempotency-Key``. It is written in one transaction with
the note of the call. So a repeated message finds the row and is answered 409. Both tables are in the context's own
database.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import BigInteger, Column, DateTime, Identity, Integer, MetaData, Table, Text, Uuid, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from relay.adapters.http import IDEMPOTENCY_KEY, key_of
from relay.devstack.ports import LOOPBACK
from relay.domain import identity
from relay.domain.errors import RelayError, of_context
from relay.domain.limits import MAX_KEY_BYTES
from relay.settings import load_settings

_log = logging.getLogger("sample")

tables = MetaData()
effects = Table(
    "sample_effects",
    tables,
    Column("message_id", Uuid, primary_key=True),
    Column("event_type", Text, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
)
calls = Table(
    "sample_calls",
    tables,
    Column("number", BigInteger, Identity(), primary_key=True),
    Column("message_id", Uuid, nullable=False, index=True),
    Column("status", Integer, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
)

OK: Final = 200
ALREADY: Final = 409
POISON: Final = 422
UNAVAILABLE: Final = 503
#: Noted for a call that was left without an answer.
HANGS: Final = 504
_HANG_SECONDS: Final = 300.0


#: An id of the contract: a UUID or other text.
Id = Annotated[str, Field(min_length=1, max_length=MAX_KEY_BYTES)]


class HandleRequest(BaseModel):
    """The request of SDS-047 §12."""

    message_id: Id
    subject: str
    event_type: str
    event_version: int
    occurred_at: datetime | None = None
    correlation_id: Id | None = None
    causation_id: Id | None = None
    payload: dict[str, Any]


def decide(payload: object, call: int) -> int:
    """Return the status for the ``call``-th call (from 1) about a message with this payload."""
    verdict = payload.get("verdict") if isinstance(payload, dict) else None
    match verdict:
        case "already":
            return ALREADY
        case "poison":
            return POISON
        case "flaky" if call <= 2:
            return UNAVAILABLE
        case "slow" if call == 1:
            return HANGS
        case _:
            return OK


def create_app(database_url: str) -> FastAPI:
    """Build the service; its tables are created when it starts."""
    engine = create_async_engine(database_url.replace("postgresql://", "postgresql+psycopg://", 1))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(tables.create_all)
        yield
        await engine.dispose()

    app = FastAPI(title="jetrelay sample handler", lifespan=lifespan)

    @app.post("/handle")
    async def handle(message: HandleRequest, request: Request) -> Response:
        key = key_of(request.headers.get(IDEMPOTENCY_KEY), message.message_id)
        status = await _process(engine, message, identity.Identity.of(key).uuid)
        _log.info("%s %s: %s", message.event_type, message.message_id, status)
        if status == HANGS:
            await _hang(request)
        return Response(status_code=status)

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        async with engine.connect() as connection:
            await connection.execute(select(1))
        return {"status": "ok"}

    return app


async def _process(engine: AsyncEngine, message: HandleRequest, key: UUID) -> int:
    async with engine.begin() as connection:
        seen = select(func.count()).select_from(calls).where(calls.c.message_id == key)
        status = decide(message.payload, (await connection.execute(seen)).scalar_one() + 1)
        if status == OK and not await _take_effect(connection, message, key):
            status = ALREADY
        await connection.execute(calls.insert().values(message_id=key, status=status))
    return status


async def _take_effect(connection: AsyncConnection, message: HandleRequest, key: UUID) -> bool:
    """Write the effect; False when it is there already."""
    row = insert(effects).values(message_id=key, event_type=message.event_type)
    done = await connection.execute(row.on_conflict_do_nothing().returning(effects.c.message_id))
    return done.first() is not None


async def _hang(request: Request) -> None:
    async with asyncio.timeout(_HANG_SECONDS):
        while not await request.is_disconnected():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.05)


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    arguments = argparse.ArgumentParser(
        prog="python -m relay.devstack.sample",
        description="A sample handler service. Reads relay.toml and RELAY_* variables for its database.",
    )
    arguments.add_argument("--context", required=True, help="the context whose messages it handles")
    arguments.add_argument("--host", default=LOOPBACK, help="the address to listen on (default: %(default)s)")
    arguments.add_argument("--port", type=int, default=8000, help="the port to listen on (default: %(default)s)")
    return arguments


def main() -> int:
    """Serve until SIGINT or SIGTERM."""
    arguments = parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    try:
        context = of_context(load_settings().contexts, arguments.context)
    except RelayError as error:
        sys.exit(f"error {error}")
    app = create_app(context.handler_database)
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=3,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
