"""Queries that the workers of `test_remote_queries` answer."""

from __future__ import annotations

import asyncio
import os
import time

from pydantic import BaseModel

from relay.bus import Query, QueryBus

queries = QueryBus()


class LoopView(BaseModel):
    loop_id: str
    answered_by: int


class FindLoop(Query[LoopView]):
    loop_id: str
    pause: float = 0


class WaitForLoop(Query[LoopView]):
    loop_id: str
    pause: float = 0


@queries.handles(FindLoop, subject="sea.queries.loop.find")
def find_loop(query: FindLoop) -> LoopView | None:
    time.sleep(query.pause)
    return None if query.loop_id == "none" else LoopView(loop_id=query.loop_id, answered_by=os.getpid())


@queries.handles(WaitForLoop, subject="sea.queries.loop.wait")
async def wait_for_loop(query: WaitForLoop) -> LoopView:
    await asyncio.sleep(query.pause)
    return LoopView(loop_id=query.loop_id, answered_by=os.getpid())
