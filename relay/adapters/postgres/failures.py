"""What PostgreSQL's errors mean: an outage, missing tables, or why it could not be reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg.errors import UndefinedColumn, UndefinedFunction, UndefinedTable

from relay.domain.disclosure import first_line
from relay.domain.errors import DatabaseUnreachable, SchemaMissing


@contextmanager
def reached() -> Iterator[None]:
    """Turn errors that mean the server is away into DatabaseUnreachable."""
    try:
        yield
    except psycopg.OperationalError as error:
        # This includes deadlocks, lock time-outs and statement time-outs: a retry can succeed.
        raise DatabaseUnreachable(first_line(error)) from error
    except (
        psycopg.InterfaceError,
        psycopg.errors.IdleInTransactionSessionTimeout,
        psycopg.errors.TransactionTimeout,
        psycopg.errors.ReadOnlySqlTransaction,
    ) as error:
        # A process that paused during a claim has lost it. After a failover, a replica may answer for a moment.
        raise DatabaseUnreachable(first_line(error)) from error


#: Classes of SQLSTATE that are about the session, the server or other sessions, and never about one row.
_NOT_A_ROW: Final = ("08", "25", "40", "53", "55", "57", "58")


def about_rows(error: psycopg.Error) -> bool:
    """Whether an error of a statement may be about single rows of it: the others would do without those.

    Constraints, triggers and policies of an application may raise nearly anything.
    """
    return error.sqlstate is not None and not error.sqlstate.startswith(_NOT_A_ROW)


@contextmanager
def migrated() -> Iterator[None]:
    """Turn PostgreSQL's errors about missing tables, columns or functions into SchemaMissing."""
    try:
        yield
    except (UndefinedTable, UndefinedColumn, UndefinedFunction) as error:
        raise SchemaMissing(
            "the database lacks tables or functions of the relay", hint="run: relay db upgrade"
        ) from error


#: The server, or the pooler, allows no further session.
NO_ROOM: Final = "all its connections are in use"

# The driver's messages may quote host names, users and, for a malformed URL, the password. So they are matched and
# never passed on.
_REASONS: Final = (
    # These come first, because their texts also match the patterns of other errors.
    ("root certificate file", "TLS: the file of sslrootcert cannot be read"),
    ("private key file", "TLS: the file of sslkey cannot be read, or others may read it too"),
    ("certificate file", "TLS: the file of sslcert cannot be read"),
    ("certificate required", "TLS: the server wants a certificate of ours (sslcert and sslkey)"),
    ("valid client certificate", "TLS: the server wants a certificate of ours (sslcert and sslkey)"),
    ("unknown ca", "TLS: the server does not trust our certificate (sslcert)"),
    ("certificate verify failed", "TLS: no authority that we trust has issued its certificate (sslrootcert)"),
    ("does not match host name", "TLS: its certificate is for another host"),
    ("does not support SSL", "TLS: the server offers no TLS"),
    ("certificate", "TLS: the certificates do not match"),
    ("SSL error", "TLS: the two sides do not agree"),
    ("refused", "the connection was refused"),
    ("timeout", "no answer in time"),
    ("timed out", "no answer in time"),
    ("authentication failed", "user or password was not accepted"),
    ("no password supplied", "the server asks for a password, and none is configured"),
    ("no pg_hba.conf entry", "the server does not allow this connection (pg_hba.conf)"),
    ("resolve host", "the host name cannot be resolved"),
    ("translate host", "the host name cannot be resolved"),
    ("starting up", "the server is starting up"),
    ("shutting down", "the server is shutting down"),
    ("too many clients", NO_ROOM),
    ("too many connections", NO_ROOM),
    ("remaining connection slots", NO_ROOM),
    # PgBouncer: max_client_conn, max_db_client_connections, max_user_client_connections.
    ("no more connections allowed", NO_ROOM),
    ("client connections exceeded", NO_ROOM),
    ("unsupported startup parameter", "a pooler accepts no options in an address: set them in the pooler"),
    ("does not exist", "the database or the user does not exist"),
    ("No such file", "nothing listens on its socket"),
)
_OTHER: Final = "the connection failed"
_HINT: Final = "check database_url of the context, and that the server runs"


def reason(error: BaseException) -> str:
    """Return what the driver's error means, in words that show nothing of the connection string."""
    text = str(error)
    return next((words for sign, words in _REASONS if sign in text), _OTHER)


@contextmanager
def reaching() -> Iterator[None]:
    """Turn every error that the driver raises while it connects into DatabaseUnreachable.

    The original is not chained, because a traceback would print it.
    """
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise DatabaseUnreachable(reason(error), hint=_HINT) from None
    except psycopg.ProgrammingError:
        raise DatabaseUnreachable("the connection string is malformed", hint=_HINT) from None
