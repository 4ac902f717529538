"""Place an order: python producer.py "a book" 12"""

import os
import sys
from uuid import uuid4

from shop_events import OrderPlaced
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from relay import Outbox

outbox = Outbox("shop")


def place(item: str, euros: int) -> str:
    order = OrderPlaced(order_id=uuid4().hex[:8], item=item, euros=euros)
    engine = create_engine(os.environ["RELAY_CONTEXTS__SHOP__DATABASE_URL"])
    with Session(engine) as session, session.begin():
        session.execute(text("CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, item text, euros int)"))
        session.execute(text("INSERT INTO orders VALUES (:order_id, :item, :euros)"), order.model_dump())
        # The order and its event are committed together, or neither is.
        event_id = outbox.add(session, order)
    return f"order {order.order_id} is placed: event {event_id}"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(place(sys.argv[1], int(sys.argv[2])))
