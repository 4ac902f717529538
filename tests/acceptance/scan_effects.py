"""Handlers and tasks that repeat in their errors what they were given, as careless code does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from consumer.handlers import IncomingEvent, MessageContext, Poison, handles
from tasks import task


def _fail(payload: dict[str, Any], attempt: int = 1) -> None:
    until_gone = payload.get("until_gone")
    while until_gone and Path(until_gone).exists():
        time.sleep(0.02)
    if payload.get("refuse"):
        raise Poison(f"cannot write to {payload['email']}")
    if payload.get("stumble") and attempt == 1:
        raise ValueError(f"no answer from {payload['email']}")


@handles("order_placed")
def placed(event: IncomingEvent, context: MessageContext) -> None:
    _fail(event.payload, context.attempt)


@handles("order_declared")
def declared(event: IncomingEvent) -> None:
    assert event.payload["email"]


@task("mail", backoff=("100ms", "1s"), max_retries=1)
def mail(payload: dict[str, Any]) -> None:
    if payload.get("refuse"):
        raise ValueError(f"cannot write to {payload['email']}")
