"""Handlers that raise what ends an event loop, loaded by the workers of a test."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from consumer.handlers import MessageContext, handles


class TimeIsUp(BaseException):
    """As a library may have its own."""


ERRORS = {"keyboard": KeyboardInterrupt, "exit": SystemExit, "own": TimeIsUp, "generator": GeneratorExit}
_left: set[asyncio.Task[None]] = set()


class Order(BaseModel):
    raises: str = ""
    in_task: bool = False


@handles("vibe_created", version=1)
async def coroutine(order: Order, context: MessageContext) -> None:
    if order.in_task and context.attempt == 1:
        task = asyncio.create_task(_fail(order.raises))
        _left.add(task)
        await asyncio.sleep(0)
    elif order.raises and context.attempt == 1:
        await _fail(order.raises)


@handles("vibe_created", version=2)
def function(order: Order, context: MessageContext) -> None:
    if order.raises and context.attempt == 1:
        raise ERRORS[order.raises]


async def _fail(name: str) -> None:
    raise ERRORS[name]
