"""Coroutine functions that fail, hang, or are done at once, loaded by the workers of a test."""

from __future__ import annotations

import asyncio
from typing import Any

from consumer.handlers import handles


@handles("failing")
async def fail(_: dict[str, Any]) -> None:
    raise ValueError("always")


@handles("away")
async def refuse(_: dict[str, Any]) -> None:
    raise TimeoutError("the ledger did not answer")


@handles("hanging")
async def hang(_: dict[str, Any]) -> None:
    await asyncio.Event().wait()


@handles("good")
async def succeed(_: dict[str, Any]) -> None:
    return
