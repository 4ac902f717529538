"""W3C Trace Context: which headers count, and what the next hop gets."""

from __future__ import annotations

import pytest

from relay.bus.context import next_span
from relay.domain.envelopes import decode, headers_of
from relay.domain.traceparent import Trace, find, next_hop, trace_id

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (VALID, 1),
        (f" {VALID}\t", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        # Flags of a later version have no meaning here, and fields that it appends are left out.
        (f"cc-{TRACE}-{SPAN}-ff", 3),
        (f"01-{TRACE}-{SPAN}-01-what-comes-later", 1),
    ],
)
def test_a_valid_header_is_read(value: str, flags: int) -> None:
    assert Trace.parse(value) == Trace(TRACE, SPAN, flags)
    assert trace_id(value) == TRACE


@pytest.mark.parametrize(
    "value",
    [
        None,
        42,
        "",
        "-",
        VALID.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01.",
        f"01-{TRACE}-{SPAN}-01x",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{TRACE}-{SPAN}-01\n",
        f"{VALID},{VALID}",
        "a" * 10_000,
    ],
)
def test_any_other_value_is_none(value: object) -> None:
    assert Trace.parse(value) is None
    assert next_hop(value, SPAN) is next_span(value) is trace_id(value) is None


def test_the_next_hop_keeps_the_trace_and_is_a_span_of_its_own() -> None:
    assert next_hop(f"01-{TRACE}-{'1' * 16}-03-more", SPAN) == f"00-{TRACE}-{SPAN}-03"
    spans = [Trace.parse(next_span(VALID)) for _ in range(3)]
    assert {span and (span.trace_id, span.flags) for span in spans} == {(TRACE, 1)}
    assert len({span and span.span_id for span in spans} | {SPAN}) == 4


def test_some_clients_begin_a_header_with_a_capital() -> None:
    assert find({"traceparent": VALID}) == find({"Traceparent": VALID}) == VALID
    assert find({"Nats-Msg-Id": "1"}) is None


@pytest.mark.parametrize(
    "told",
    [
        {"traceparent": "broken", "ce-traceparent": VALID},
        {"traceparent": VALID, "ce-traceparent": "broken"},
        {"Traceparent": "broken", "ce-traceparent": VALID},
        {"ce-traceparent": VALID},
    ],
)
def test_a_trace_that_is_not_valid_hides_no_valid_one(told: dict[str, str]) -> None:
    foreign = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/them", "ce-type": "opened"}
    headers = {**foreign, **told}
    event = decode("cloudevents", "them.opened", headers, b"{}")
    assert event.traceparent == find(headers_of(event, headers)) == VALID
