"""Filters and columns that several kinds of rows have."""

from __future__ import annotations

from typing import Final

from relay.ops.kinds.model import Argument, Column, Filter

_CODES: Final = (
    "A code such as timeout, connection_refused, tls, status_503, raised_KeyError; or a part of the text"
)
_HINT: Final = "a code or a part of the text"

EVENT_TYPE: Final = Filter(
    name="event_type", label="Type", meaning="Only this type, or those that begin so: order_*", words=("type",)
)
SUBSCRIPTION: Final = Filter(
    name="subscription", label="Subscription", meaning="Only this subscription", words=("subscription",)
)
KEY: Final = Filter(
    name="key", label="Key", meaning="Only this partition key", column="partition_key", words=("key", "id")
)
CORRELATION: Final = Filter(
    name="correlation_id",
    label="Correlation",
    meaning="Only this correlation id",
    form="id",
    option="correlation",
    words=("correlation", "id"),
)
ERROR: Final = Filter(
    name="error", label="Error", meaning=_CODES, hint=_HINT, reasons=True, words=("reason", "error")
)
REASON: Final = Filter(
    name="reason", label="Reason", meaning=_CODES, hint=_HINT, reasons=True, words=("reason", "error")
)
PAYLOAD: Final = Filter(
    name="payload",
    label="Payload",
    meaning="Only payloads with this value",
    how="PATH=VALUE, such as order.id=47",
    hint="order.id=47",
)
#: What lets a stale row go on.
EXPIRES_IN: Final = Argument(
    name="expires_in",
    parameter="expires_in",
    label="Expires in",
    meaning="How long what is stale is worth something from now on, or never: without an end",
    hint="10m",
    form="duration",
    optional=True,
    endless="never",
)
#: Until when a row is worth something.
EXPIRES_AT: Final = Column(name="expires_at", label="Expires", show="time")
#: The last columns of every kind: what the row belongs to, and what caused it.
CHAIN: Final = (
    Column(name="correlation_id", label="Correlation", show="life"),
    Column(name="causation_id", label="Caused by", show="life"),
)


def since(which: str) -> Filter:
    """A filter by time. ``which``: such as "that happened"."""
    return Filter(
        name="since",
        label="Since",
        form="time",
        words=("since",),
        meaning=f"Only those {which} since",
        how="90m, 2d, or a time",
        options=("15m", "1h", "6h", "1d", "7d"),
    )


def until(which: str) -> Filter:
    """A filter by time; the time itself is excluded."""
    return Filter(
        name="until",
        label="Until",
        form="time",
        words=("until",),
        meaning=f"Only those {which} before",
        how="90m, 2d, or a time",
        options=("15m", "1h", "6h", "1d", "7d"),
    )
