"""The tasks of billing: work for later. (A module called tasks would hide jetrelay's own.)"""

import logging

from pydantic import BaseModel

from tasks import task

log = logging.getLogger("billing")


class Invoice(BaseModel):
    order_id: str
    euros: int


@task("send_invoice")
def send_invoice(invoice: Invoice) -> None:
    log.info("order %s: an invoice over %d euros", invoice.order_id, invoice.euros)
