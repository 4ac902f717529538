"""Block 3, the subscriber: each event of the accounts service becomes a command.

The command joins the transaction of the inbox row, so it takes effect once however often the event comes. It is
acknowledged after the commit. A Failed becomes a dead letter, whatever else goes wrong is tried again.
"""

from __future__ import annotations

import logging

from pydantic import BaseModel
from sqlalchemy.orm import Session

from consumer.handlers import handles
from examples.cases_service.commands import CloseCasesOfAccount
from examples.cases_service.service import bus

log = logging.getLogger("cases.subscriber")


class AccountClosed(BaseModel):
    account: str


@handles("account_closed")
def account_closed(event: AccountClosed, session: Session) -> None:
    closed = bus.dispatch(CloseCasesOfAccount(account=event.account), session=session).unwrap()
    log.info("closed %s cases of a closed account", closed)
