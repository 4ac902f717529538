"""What billing does with the events of the shop. The workers call these functions."""

from jobs import Invoice, send_invoice
from shop_events import OrderPlaced
from sqlalchemy.orm import Session

from consumer.handlers import Poison, handles
from tasks import schedule


@handles(OrderPlaced)
def bill(order: OrderPlaced, session: Session) -> None:
    if order.euros <= 0:
        raise Poison("an order must cost something")
    # The task and the note that this event is handled are committed together, or neither is.
    schedule(session, send_invoice, Invoice(order_id=order.order_id, euros=order.euros))
