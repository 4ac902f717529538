"""The application: routes, buses, and the connections under them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from relay.adapters.postgres.budget import Budgets
from relay.adapters.postgres.pool import Connection, Pool, Source
from relay.adapters.postgres.sql import statement
from relay.bus import RequestContextMiddleware
from relay.bus.http import answer_errors, json_response
from relay.domain.errors import DatabaseUnreachable
from relay.ops.alarms.watch import ReadAlarms, Watch, WatchLimits
from relay.ops.api import (
    archive,
    contexts,
    controls,
    deeds,
    everywhere,
    history,
    personal,
    persons,
    queues,
    replays,
    system,
    work,
)
from relay.ops.api import live as live_events
from relay.ops.api.access import FAULT, Door, Doorkeeper, NotAdmitted
from relay.ops.api.common import Ops, OpsLimits, Recent
from relay.ops.api.conditional import Conditional
from relay.ops.api.document import described, document_of, operation_id
from relay.ops.api.live import Live, LiveLimits
from relay.ops.api.refusals import problem, refused
from relay.ops.api.rows import router_of
from relay.ops.api.turns import RequestLimits, Turns
from relay.ops.archive import ArchiveHandlers
from relay.ops.console.render import as_page
from relay.ops.console.routes import attach
from relay.ops.export import HeldRows
from relay.ops.find import Finder
from relay.ops.forgetting import Forgetting
from relay.ops.handlers import RowHandlers
from relay.ops.kinds import KINDS
from relay.ops.personal import carry_out_for_personal
from relay.ops.queries import queries
from relay.ops.queues import answer_for_queues, carry_out_for_queues
from relay.ops.retention import Retention
from relay.ops.servers import answer_for_servers
from relay.ops.work import Works
from relay.settings import ContextSettings, Settings

#: The connections for one context, and the time limit of a page in milliseconds.
_CONNECTIONS: Final = 4
#: Its connections to a server, unless `max_connections` says another number.
_ALL_CONNECTIONS: Final = 8
_LIMIT_MS: Final = "10000"
#: How long files of an archive are read for one answer, in seconds.
_PATIENCE_S: Final = 20.0
_LIMITS: Final = OpsLimits()
_TURNS: Final = RequestLimits()
_LIVE: Final = LiveLimits()
#: The rules and the overview together read fewer contexts at once than there are connections to a server.
_WATCH: Final = WatchLimits(at_once=3)
_ABOUT: Final = "Look at what waits and what failed in jetrelay, and decide about it."


def create_app(
    settings: Settings,
    pools: ContextPools | None = None,
    limits: OpsLimits = _LIMITS,
    turns: RequestLimits = _TURNS,
    live: LiveLimits = _LIVE,
) -> Door:
    """Return the ASGI application for a configuration. It connects when it is first asked.

    ``pools``: its connections, which it closes; its own if none are given.
    """
    pools = pools or ContextPools(settings.max_connections or _ALL_CONNECTIONS)

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        yield
        await app.state.live.close()
        await pools.close()

    app = FastAPI(
        title="jetrelay",
        version="1",
        description=_ABOUT,
        # See `_described`.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # It would lead to whatever name the request has given.
        redirect_slashes=False,
        lifespan=living,
        generate_unique_id_function=operation_id,
    )
    app.add_middleware(Conditional)
    app.openapi = partial(document_of, app)  # type: ignore[method-assign]
    rows = RowHandlers(settings.contexts, pools.of, limits.window)
    cold = ArchiveHandlers(settings.contexts, pools.of, patience=_PATIENCE_S)
    asked = cold.answer(rows.answer(queries(settings, sources=pools.of, patience=_PATIENCE_S)))
    asked = Finder(settings.contexts, pools.of, asked).answer()
    asked = answer_for_queues(answer_for_servers(asked, settings), settings)
    asked = Retention(settings, pools.of).answer(Works(settings.contexts, pools.of, asked).answer())
    asked.handles(ReadAlarms)(Watch(settings, pools.of, limits=_WATCH).answer)
    done = carry_out_for_queues(cold.carry_out(rows.commands()), settings, pools.of)
    done = carry_out_for_personal(done, settings, pools.of)
    forgetting = Forgetting(settings.contexts, pools.of)
    asked, done = forgetting.answer(asked), forgetting.carry_out(done)
    asked = HeldRows(settings, pools.of).answer(asked)
    app.state.ops = Ops(settings, asked, done, Recent(), limits)
    app.state.live = Live(app.state.ops, live)
    for router in (
        *map(router_of, KINDS.values()),
        contexts.router,
        personal.router,
        replays.router,
        controls.router,
        work.router,
        history.router,
        deeds.router,
        archive.router,
        queues.router,
        system.router,
        everywhere.router,
        persons.router,
        live_events.router,
    ):
        app.include_router(router, prefix="/api/v1")
    app.include_router(system.probes)
    app.add_route("/api/v1/openapi.json", _described, include_in_schema=False)
    answer_errors(app)
    app.add_exception_handler(Exception, _fault)
    app.add_exception_handler(NotAdmitted, _refused)
    app.add_exception_handler(RequestValidationError, refused)
    app.add_exception_handler(HTTPException, _http)
    for kind, answer in [*app.exception_handlers.items()]:
        app.add_exception_handler(kind, _shown(answer))
    attach(app)
    return Door(Turns(RequestContextMiddleware(app), turns), Doorkeeper(settings.ops), as_page)


class ContextPools:
    """A few connections for each context, made at the first question about it.

    ``most``: for each server. ``silence``: how long a connection is used for one answer, in seconds.
    """

    def __init__(self, most: int, *, silence: float = 15.0) -> None:
        self.silence = silence
        self._budgets = Budgets(most)
        self._pools: dict[str, Pool] = {}

    @asynccontextmanager
    async def of(self, context: ContextSettings) -> AsyncIterator[Source]:
        """Lend the database of a context."""
        if context.name not in self._pools:
            name = f"jetrelay-ops-{context.name}"
            self._pools[context.name] = pool = Pool(
                context.database,
                max_size=_CONNECTIONS,
                application_name=name,
                budget=self._budgets.of(context.database),
                configure=_limited,
            )
            await pool.open()
        yield partial(_in_time, self._pools[context.name].connection, self.silence)

    async def close(self) -> None:
        """Close all connections. Raises nothing."""
        for pool in self._pools.values():
            await pool.close()


@asynccontextmanager
async def _in_time(lend: Source, seconds: float) -> AsyncIterator[Connection]:
    """Lend a connection for a limited time. Raises DatabaseUnreachable after it.

    A server that runs ends a statement itself. One that hangs keeps no time.
    """
    try:
        async with asyncio.timeout(seconds) as limit, lend() as conn:
            yield conn
    except TimeoutError:
        if not limit.expired():
            raise
        raise DatabaseUnreachable(f"no answer within {seconds:g} s") from None


async def _limited(conn: Connection) -> None:
    await conn.execute(statement("session/limit"), {"limit": _LIMIT_MS, "local": False})


def _shown(answer: Any) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Answer an error as before, with a page if a person has asked for one."""

    async def handle(request: Request, error: Exception) -> Response:
        answered = answer(request, error)
        return as_page(request, await answered if isawaitable(answered) else answered)

    return handle


async def _described(request: Request) -> Response:
    return json_response(await described(request.app))


def _fault(_request: Request, _error: Exception) -> Response:
    return json_response(FAULT, 500)


def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, NotAdmitted)
    return error.response()


def _http(_request: Request, error: Exception) -> Response:
    """What the framework itself refuses: unknown paths and methods, bodies that are not JSON."""
    assert isinstance(error, HTTPException)
    codes = {404: "NO_SUCH_PATH", 405: "METHOD_NOT_ALLOWED"}
    body = problem(codes.get(error.status_code, "INVALID_REQUEST"), str(error.detail))
    response = json_response(body, error.status_code)
    response.headers.update(error.headers or {})
    return response
