"""Functions that fail and say with what, loaded by the workers of a test (``RELAY_ACTOR_MODULES``)."""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.orm import Session

from consumer.handlers import handles
from tasks import task


class Account(BaseModel):
    iban: str


@handles("account_opened")
def raise_it(account: Account) -> None:
    raise ValueError(f"{account.iban} is not an IBAN")


@handles("account_checked")
def have_postgresql_say_it(account: Account, session: Session) -> None:
    session.execute(text("SELECT CAST(:iban AS uuid)"), {"iban": account.iban})


@task("book", backoff=("100ms", "1s"), max_retries=1)
def book(account: Account) -> None:
    raise LookupError(f"no account {account.iban}")
