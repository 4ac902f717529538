"""Which exceptions and statuses look like an outage."""

from __future__ import annotations

import errno
import socket
from typing import Any
from urllib.error import HTTPError, URLError

import aiohttp
import psycopg
import pytest
import redis.exceptions
import sqlalchemy.exc
from nats.errors import NoServersError

from relay.domain import outages
from relay.domain.errors import DatabaseUnreachable
from relay.domain.model import Away, HandlerResult
from relay.domain.outages import says_held, says_outage
from relay.execution.calls import answer, timed_out


def made(module: str, name: str, base: type[BaseException] = Exception, **values: Any) -> BaseException:
    """An exception of a package that need not be installed."""
    return type(name, (base,), {"__module__": module, **values})("x")


def wrapped(inner: BaseException, *, hidden: bool) -> BaseException:
    """What is raised while an exception is handled."""
    outer = ValueError("the ledger does not answer")
    outer.__context__, outer.__suppress_context__ = inner, hidden
    return outer


class Answered:
    def __init__(self, status: int) -> None:
        self.status_code = status


def http(status: int) -> HTTPError:
    return HTTPError("http://x", status, "x", None, None)  # type: ignore[arg-type]


OUTAGES = [
    ConnectionError(),
    ConnectionRefusedError(),
    ConnectionResetError(),
    TimeoutError(),
    socket.gaierror(),
    OSError(errno.EHOSTUNREACH, "x"),
    URLError(OSError()),
    http(503),
    http(429),
    aiohttp.ServerDisconnectedError(),
    psycopg.OperationalError("connection refused"),
    psycopg.errors.AdminShutdown("x"),
    psycopg.errors.TooManyConnections("x"),
    sqlalchemy.exc.OperationalError("SELECT", {}, psycopg.OperationalError("x")),
    sqlalchemy.exc.TimeoutError(),
    redis.exceptions.ConnectionError(),
    redis.exceptions.TimeoutError(),
    NoServersError(),
    DatabaseUnreachable("x"),
    made("httpx", "ConnectError", type("TransportError", (Exception,), {"__module__": "httpx"})),
    made("httpx", "HTTPStatusError", response=Answered(502)),
    made(
        "requests.exceptions", "ConnectTimeout", type("Timeout", (OSError,), {"__module__": "requests.exceptions"})
    ),
    made("urllib3.exceptions", "MaxRetryError"),
    made(
        "grpc._channel",
        "E",
        type("RpcError", (Exception,), {"__module__": "grpc"}),
        code=lambda _: made_code("UNAVAILABLE"),
    ),
    wrapped(ConnectionError(), hidden=False),
    ExceptionGroup("several", [ValueError(), ConnectionError()]),
]
OTHERS = [
    ValueError("x"),
    KeyError("x"),
    RuntimeError("time-out"),
    OSError(errno.ENOENT, "x"),
    http(404),
    psycopg.errors.DeadlockDetected("x"),
    psycopg.errors.SerializationFailure("x"),
    psycopg.errors.UniqueViolation("x"),
    sqlalchemy.exc.OperationalError("SELECT", {}, psycopg.errors.DeadlockDetected("x")),
    made("httpx", "HTTPStatusError", response=Answered(404)),
    made("shop.errors", "ConnectionError"),
    made(
        "grpc._channel",
        "E",
        type("RpcError", (Exception,), {"__module__": "grpc"}),
        code=lambda _: made_code("NOT_FOUND"),
    ),
    wrapped(ConnectionError(), hidden=True),
]


def made_code(name: str) -> Any:
    return type("Code", (), {"name": name})


@pytest.mark.parametrize("error", OUTAGES, ids=lambda it: type(it).__name__)
def test_an_outage_is_recognised_by_its_name(error: BaseException) -> None:
    assert says_outage(error)
    assert answer(error).away is Away.PERHAPS


@pytest.mark.parametrize("error", OTHERS, ids=lambda it: type(it).__name__)
def test_another_failure_is_none(error: BaseException) -> None:
    assert not says_outage(error)
    assert answer(error).away is Away.NO


def test_an_application_adds_its_own() -> None:
    error = made("stripe._error", "APIConnectionError")
    assert not says_outage(error)
    outages.add(["stripe.APIConnectionError"])
    assert says_outage(error)
    assert not says_outage(made("stripe._error", "CardError"))


def test_an_exception_that_hides_its_text_is_judged_too() -> None:
    class Silent(ConnectionError):
        def __str__(self) -> str:
            raise RuntimeError

    assert says_outage(Silent())


@pytest.mark.parametrize(
    ("status", "away"),
    [
        *((status, Away.PERHAPS) for status in (408, 429, 500, 502, 503, 504)),
        *((status, Away.NO) for status in (200, 202, 301, 400, 401, 403, 404, 409, 410, 413, 422)),
    ],
)
def test_a_5xx_and_not_now_may_be_an_outage_and_no_other_4xx_is(status: int, away: Away) -> None:
    assert HandlerResult.from_status(status).away is away


def test_so_may_a_time_out() -> None:
    assert timed_out(1).away is Away.PERHAPS


class Cancelled(psycopg.errors.QueryCanceled):
    """A statement that PostgreSQL has cancelled, and what it says of the moment."""

    def __init__(self, context: str | None) -> None:
        super().__init__("canceling statement due to statement timeout")
        self.told = context

    @property
    def diag(self) -> Any:
        return type("Diagnostic", (), {"context": self.told})


LOCKS = [
    psycopg.errors.LockNotAvailable("x"),
    psycopg.errors.DeadlockDetected("x"),
    psycopg.errors.SerializationFailure("x"),
    sqlalchemy.exc.OperationalError("SELECT", {}, psycopg.errors.LockNotAvailable("x")),
    made("psycopg2.errors", "LockNotAvailable", pgcode="55P03"),
    made("asyncpg.exceptions", "LockNotAvailableError", sqlstate="55P03"),
    wrapped(psycopg.errors.LockNotAvailable("x"), hidden=False),
    ExceptionGroup("x", [psycopg.errors.LockNotAvailable("x")]),
    Cancelled('while updating tuple (0,1) in relation "stock"'),
    Cancelled('SQL function "f"\nwhile inserting index tuple (0,2) in relation "stock_pkey"'),
]


@pytest.mark.parametrize("error", LOCKS, ids=repr)
def test_a_lock_of_another_transaction_is_nobodys_mistake(error: BaseException) -> None:
    result = answer(error)
    assert (says_held(error), result.held, result.away) == (True, True, Away.NO)


@pytest.mark.parametrize(
    "error",
    [Cancelled(None), Cancelled("PL/pgSQL function f() line 3"), psycopg.errors.UniqueViolation("x"), KeyError()],
)
def test_other_errors_speak_of_no_lock(error: BaseException) -> None:
    assert not says_held(error)
