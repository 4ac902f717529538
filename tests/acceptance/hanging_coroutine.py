"""Coroutine functions that never return, loaded by the workers of a test (``python:`` and this module)."""

from __future__ import annotations

import asyncio
from typing import Any

from consumer.handlers import handles


async def hang(_: dict[str, Any]) -> None:
    await asyncio.Event().wait()


for number in range(10):
    handles(f"hang_{number}")(hang)
