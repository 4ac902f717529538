"""The events of the shop, as all services know them."""

from pydantic import BaseModel

from relay import event


@event("order_placed", version=1, aggregate_type="order", aggregate_id="order_id")
class OrderPlaced(BaseModel):
    order_id: str
    item: str
    euros: int
