"""A stand-in for the neighbour: ``python -m examples.cases_service.accounts ACCOUNT`` closes an account."""

from __future__ import annotations

import sys
from typing import Any

import psycopg
from psycopg import Connection
from sqlalchemy.orm import Session

from relay import Event, Outbox, RequestContext
from relay.settings import load_settings


def close(account: object) -> str:
    """Commit the event; returns the correlation id of what follows from it."""
    url = load_settings().contexts["accounts"].database_url.get_secret_value()
    with psycopg.connect(url) as connection, RequestContext.begin().use() as request:
        announce(connection, account)
        return str(request.correlation_id)


def announce(transaction: Connection[Any] | Session, account: object) -> None:
    """Tell others of it, in the transaction that closes the account."""
    payload = {"account": account}
    Outbox("accounts").add(
        transaction,
        Event(event_type="account_closed", aggregate_type="account", aggregate_id=str(account), payload=payload),
    )


if __name__ == "__main__":
    print(close(sys.argv[1]))
