"""W3C Trace Context: the header ``traceparent`` names a trace, and in it the span that sends.

A header that is not valid is ignored (W3C): it must never break the work that it came with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

TRACEPARENT: Final = "traceparent"

# A later version may append fields behind another hyphen.
_FORM: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace_id>[0-9a-f]{32})-(?!0{16})(?P<span_id>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.DOTALL,
)
#: The flags that this version defines: sampled, and that the id of the trace is random.
_KNOWN_FLAGS: Final = 0b11
_SAMPLED: Final = 0b01
_LOW_64: Final = 2**64 - 1


class Trace(NamedTuple):
    """A valid ``traceparent``, without what a later version may have appended."""

    trace_id: str
    span_id: str
    flags: int = 0

    @classmethod
    def parse(cls, value: object) -> Trace | None:
        """Read a header's value. None if it is missing or not valid."""
        found = _FORM.fullmatch(value.strip(" \t")) if isinstance(value, str) else None
        if found is None or (found["version"] == "00" and found["more"] is not None):
            return None
        return cls(found["trace_id"], found["span_id"], int(found["flags"], 16) & _KNOWN_FLAGS)

    @property
    def sampled(self) -> bool:
        """Whether the trace is recorded."""
        return bool(self.flags & _SAMPLED)

    @property
    def value(self) -> str:
        """The header's value, in version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def find(headers: Mapping[str, str]) -> str | None:
    """The ``traceparent`` among the headers of a message. Some clients begin every header with a capital."""
    return headers.get(TRACEPARENT) or headers.get("Traceparent")


def call_span(claim: UUID, row: UUID) -> str:
    """The id of the span of a call for a row. It is made from the claim's token, so it follows from the claim."""
    return f"{(claim.int ^ row.int) & _LOW_64 or 1:016x}"


def next_hop(value: object, span_id: str) -> str | None:
    """The header for the next hop: the trace of ``value``, sent by ``span_id``. None if ``value`` is not valid."""
    trace = Trace.parse(value)
    return None if trace is None else trace._replace(span_id=span_id).value


def trace_id(value: object) -> str | None:
    """The id of the trace that a header's value names. None if it is missing or not valid."""
    trace = Trace.parse(value)
    return None if trace is None else trace.trace_id
