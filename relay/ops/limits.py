"""Limits as operators write them."""

from __future__ import annotations

from datetime import timedelta

from relay.domain.controls import Limit
from relay.domain.errors import InvalidRequest
from relay.settings.values import parse_duration, parse_rate


def read_limit(concurrency: int | None, rate: str | None, *, per_key: bool = False) -> Limit:
    """A limit from a number and a rate such as ``100/1m``. Raises InvalidRequest."""
    if rate is None:
        if per_key:
            raise InvalidRequest("needs a rate", field="per_key", hint="such as --rate 10/1m --per-key")
        return Limit(concurrency=concurrency)
    try:
        interval = parse_rate(rate)
    except ValueError as error:
        raise InvalidRequest(str(error), field="rate", hint="such as 100/1m") from None
    return Limit(concurrency=concurrency, interval=interval, per_key=per_key)


def read_duration(text: str | None, field: str) -> timedelta | None:
    """A duration. Raises InvalidRequest, which names ``field``."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise InvalidRequest(str(error), field=field) from None
