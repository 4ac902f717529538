"""Block 1, the API: parse, dispatch, map the result. No rule of the domain is here.

    uvicorn --factory examples.cases_service.api:create_app

Failed → 4xx, Nothing → 404, infrastructure → 5xx.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool

from examples.cases_service import dead_letters
from examples.cases_service.commands import CloseCase, OpenCase
from examples.cases_service.database import create_tables
from examples.cases_service.domain import UnknownCase
from examples.cases_service.queries import CasesOfAccount, CaseView, FindCase, queries
from examples.cases_service.service import bus
from relay import RelayError
from relay.bus import Failed, Nothing, Ok, RequestContextMiddleware, Some
from relay.bus.errors import InvalidCommand, InvalidQuery
from relay.domain.errors import WriteConflict
from relay.settings import load_settings
from relay.telemetry.logs import configure

router = APIRouter()
log = logging.getLogger("cases.api")


@router.post("/cases", status_code=201, response_model=None)
def open_case(command: OpenCase) -> JSONResponse | dict[str, UUID]:
    match bus.dispatch(command):
        case Ok(id):
            return {"id": id}
        case Failed() as failed:
            return refused(failed)


@router.post("/cases/{id}/close", status_code=204, response_model=None)
def close_case(id: UUID, reason: Annotated[str, Body(embed=True)]) -> JSONResponse | None:
    match bus.dispatch(CloseCase(id=id, reason=reason)):
        case Ok():
            return None
        case Failed() as failed:
            return refused(failed)


@router.get("/cases/{id}", response_model=None)
def find_case(id: UUID) -> JSONResponse | CaseView:
    match queries.ask(FindCase(id=id)):
        case Some(view):
            return view
        case Nothing():
            return problem(404, UnknownCase.code, f"there is no case {id}")


@router.get("/cases")
def cases_of_account(account: str) -> list[CaseView]:
    return queries.ask(CasesOfAccount(account=account)).unwrap()


def refused(failed: Failed) -> JSONResponse:
    """A rule of the domain says no."""
    status = 404 if isinstance(failed.error, UnknownCase) else 409
    return problem(status, failed.code, failed.error.message)


def problem(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message}, status)


def create_app() -> RequestContextMiddleware:
    """Build the application. The middleware is outermost: error handlers know the request's correlation too."""
    settings = load_settings()
    configure(settings.log_level, settings.log_format)
    app = FastAPI(title="cases", lifespan=_lifespan)
    app.include_router(router)
    app.include_router(dead_letters.router)
    for invalid in (InvalidCommand, InvalidQuery):
        app.add_exception_handler(invalid, _invalid)
    for outage in (OperationalError, InterfaceError, PoolTimeout, WriteConflict):
        app.add_exception_handler(outage, _unavailable)
    app.add_exception_handler(Exception, _broken)
    return RequestContextMiddleware(app)


@asynccontextmanager
async def _lifespan(_: FastAPI) -> AsyncIterator[None]:
    await run_in_threadpool(create_tables)
    yield


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RelayError)
    return problem(422, error.code, error.message)


def _unavailable(_: Request, error: Exception) -> JSONResponse:
    log.error("the database is not available: %s", type(error).__name__)
    return problem(503, "UNAVAILABLE", "try again later")


def _broken(_: Request, error: Exception) -> JSONResponse:
    log.error("a request failed: %s", type(error).__name__)
    return problem(500, "BROKEN", "this is our fault")
