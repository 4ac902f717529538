"""Shipping, a service of its own: uvicorn shipping:app --port 8001"""

import os
from typing import Annotated

from fastapi import FastAPI
from shop_events import OrderPlaced
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from relay.handler import HandlerEndpoint, Received

engine = create_async_engine(os.environ["RELAY_CONTEXTS__SHIPPING__DATABASE_URL"])
# It notes each event in the database, so that one that comes twice is done once.
endpoint = HandlerEndpoint("shipping", engine, {"order_placed.v1": OrderPlaced})
app = FastAPI()


@app.post("/handle")
async def handle(event: Annotated[Received[OrderPlaced, AsyncSession], endpoint.dependency()]) -> None:
    # What you write through event.session is committed together with the note.
    print(f"order {event.payload.order_id}: {event.payload.item} is on its way", flush=True)


@app.get("/healthz")
async def health() -> dict[str, str]:
    return {"status": "ok"}
