"""Conflicts of transactions: nobody has made a mistake, and a second try usually succeeds."""

from __future__ import annotations

from typing import Final

import psycopg
from sqlalchemy.exc import DBAPIError

from relay.domain.errors import WriteConflict

#: Deadlock and serialization failure.
_CONFLICTS: Final = {"40P01", "40001"}


def is_conflict(error: BaseException) -> bool:
    """Whether PostgreSQL has ended a transaction in favour of another one."""
    if isinstance(error, WriteConflict) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    return isinstance(error, psycopg.Error) and error.sqlstate in _CONFLICTS
