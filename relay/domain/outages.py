"""Which exceptions of a Python function say that something it needs is away (docs/how-to/handler-outages.md).

They are recognised by the names of their classes and base classes, so this imports none of their packages. An
exception that wraps one of them, or was raised while one was handled, says the same. Where an exception has a
status or a code, that decides: a deadlock is no outage, although its class is the one of a lost connection.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from relay.domain.disclosure import causes, members, or_else
from relay.domain.errors import Outage
from relay.domain.model import is_outage_status

#: A class by the beginning of its module's name, and its own name.
NAMES: Final = frozenset(
    {
        *("builtins.ConnectionError", "builtins.TimeoutError", "socket.gaierror", "urllib.URLError"),
        *("httpx.TransportError", "httpcore.NetworkError", "httpcore.TimeoutException"),
        *("requests.ConnectionError", "requests.Timeout", "requests.ChunkedEncodingError"),
        *("urllib3.MaxRetryError", "urllib3.TimeoutError", "urllib3.ProtocolError", "urllib3.NewConnectionError"),
        *("aiohttp.ClientConnectionError", "aiohttp.ClientPayloadError", "aiohttp.ServerTimeoutError"),
        *("psycopg.OperationalError", "psycopg_pool.PoolTimeout", "psycopg2.OperationalError"),
        *("asyncpg.PostgresConnectionError", "asyncpg.CannotConnectNowError", "asyncpg.TooManyConnectionsError"),
        *("sqlalchemy.OperationalError", "sqlalchemy.TimeoutError", "sqlalchemy.DisconnectionError"),
        *("django.OperationalError", "pymysql.OperationalError", "MySQLdb.OperationalError"),
        *("redis.ConnectionError", "redis.TimeoutError", "redis.BusyLoadingError", "redis.ClusterDownError"),
        *("nats.ConnectionClosedError", "nats.NoServersError", "nats.TimeoutError", "nats.NoRespondersError"),
        *("nats.StaleConnectionError", "nats.ServiceUnavailableError"),
        *("pymongo.AutoReconnect", "pymongo.ServerSelectionTimeoutError"),
        *("botocore.EndpointConnectionError", "botocore.ConnectTimeoutError", "botocore.ReadTimeoutError"),
        *("smtplib.SMTPServerDisconnected", "smtplib.SMTPConnectError"),
    }
)
#: Classes whose objects carry an HTTP status, and where.
_STATUS: Final = {
    "httpx.HTTPStatusError": ("response", "status_code"),
    "requests.HTTPError": ("response", "status_code"),
    "aiohttp.ClientResponseError": ("status",),
    "urllib.HTTPError": ("code",),
}
_GRPC: Final = "grpc.RpcError"
_GRPC_CODES: Final = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
#: The codes of PostgreSQL (SQLSTATE) for: connection lost, too many connections, time-out, shutting down,
#: broken disk.
_SQLSTATES: Final = ("08", "53", "57014", "57P", "58")
#: And for: a lock is not available, deadlock, serialization failure.
_HELD: Final = {"55P03", "40P01", "40001"}
#: A statement is cancelled: by a time-out, or by hand. PostgreSQL names the row that it waited for.
_CANCELLED: Final = "57014"
_WAITED_FOR_ROW: Final = re.compile("while [a-z ]+ tuple ")
_UNREACHABLE: Final = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT}
_added: set[str] = set()


def add(names: Collection[str]) -> None:
    """Count further exceptions as outages: ``package.Class``, for this process."""
    _added.update(names)


@or_else(lambda _: False)
def says_outage(error: BaseException) -> bool:
    """Whether an exception, or one that led to it, says that something is away."""
    return any(_says(it) for cause in causes(error) for it in members(cause))


@or_else(lambda _: False)
def says_held(error: BaseException) -> bool:
    """Whether PostgreSQL says that a lock of another transaction was in the way. That is nobody's mistake."""
    return any(_held(it) for cause in causes(error) for it in members(cause))


@or_else(lambda _: False)
def says_cancelled(error: BaseException) -> bool:
    """Whether a statement was cancelled. It may have waited for the lock of a table: PostgreSQL does not say."""
    return any(_sqlstate(it) == _CANCELLED for cause in causes(error) for it in members(cause))


def _held(error: BaseException) -> bool:
    if (code := _sqlstate(error)) != _CANCELLED:
        return code in _HELD
    driver = getattr(error, "orig", None) or error
    told = _value(driver, "diag", "context") or _value(driver, "context")
    return isinstance(told, str) and _WAITED_FOR_ROW.search(told) is not None


def _says(error: BaseException) -> bool:
    if isinstance(error, Outage):
        return True
    names = {name for cls in type(error).__mro__ for name in _names(cls)}
    if names & _added:
        return True
    if (answer := _by_code(error, names)) is not None:
        return answer
    return not names.isdisjoint(NAMES) or (isinstance(error, OSError) and error.errno in _UNREACHABLE)


def _by_code(error: BaseException, names: Collection[str]) -> bool | None:
    """What the status or code of an error says; None if it has none."""
    for name, path in _STATUS.items():
        if name in names:
            status = _value(error, *path)
            return is_outage_status(status) if isinstance(status, int) else False
    if _GRPC in names:
        code = getattr(error, "code", None)
        return getattr(code() if callable(code) else code, "name", None) in _GRPC_CODES
    sqlstate = _sqlstate(error)
    return None if sqlstate is None else sqlstate.startswith(_SQLSTATES)


def _sqlstate(error: BaseException) -> str | None:
    # SQLAlchemy wraps the driver's error.
    driver = getattr(error, "orig", None) or error
    code = getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None)
    return code if isinstance(code, str) else None


def _value(of: Any, *path: str) -> Any:
    for name in path:
        of = getattr(of, name, None)
    return of


def _names(cls: type) -> Iterator[str]:
    """The names of a class: with its module, and with each package that the module is in."""
    module = cls.__module__
    while module:
        yield f"{module}.{cls.__name__}"
        module = module.rpartition(".")[0]
