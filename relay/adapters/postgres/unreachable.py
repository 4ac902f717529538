"""Why PostgreSQL could not be reached, said without anything of the connection string.

The driver's own words may quote host names, users and, of a malformed URL, the password. So they are
matched here, never passed on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from relay.domain.errors import DatabaseUnreachable

_REASONS: Final = (
    ("refused", "the connection was refused"),
    ("timeout", "no answer in time"),
    ("timed out", "no answer in time"),
    ("authentication failed", "user or password was not accepted"),
    ("no password supplied", "a password is asked for and none is configured"),
    ("no pg_hba.conf entry", "the server admits no such connection (pg_hba.conf)"),
    ("resolve host", "the host name cannot be resolved"),
    ("translate host", "the host name cannot be resolved"),
    ("starting up", "the server is starting up"),
    ("shutting down", "the server is shutting down"),
    ("too many clients", "all its connections are taken"),
    ("remaining connection slots", "all its connections are taken"),
    ("certificate", "the TLS certificates do not match"),
    ("does not exist", "the database or the user does not exist"),
    ("No such file", "nothing listens on its socket"),
)
_OTHER: Final = "the connection failed"
_HINT: Final = "check database_url of the context, and that the server runs"


def reason(error: BaseException) -> str:
    """Say what the driver means, in words that hold no part of the connection string."""
    text = str(error)
    return next((words for sign, words in _REASONS if sign in text), _OTHER)


@contextmanager
def reaching() -> Iterator[None]:
    """Turn whatever the driver raises while it connects into DatabaseUnreachable.

    The original is dropped, not chained: a traceback would print it.
    """
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise DatabaseUnreachable(reason(error), hint=_HINT) from None
    except psycopg.ProgrammingError:
        raise DatabaseUnreachable("the connection string is malformed", hint=_HINT) from None
