"""Whether a stream removes what expires, by relay.toml and the server. Before 2.11 nats-server cannot."""

from __future__ import annotations

from datetime import timedelta

from relay.adapters.jetstream.topology import compare_stream, stream_update, wanted_stream
from relay.domain.topology import StreamSpec


def spec(*, message_ttl: bool) -> StreamSpec:
    return StreamSpec(
        name="SEA", subjects=("sea.>",), max_age=timedelta(days=1), max_bytes=1_000, message_ttl=message_ttl
    )


def test_an_old_server_that_leaves_it_out_differs_and_nothing_else_does() -> None:
    answered = wanted_stream(spec(message_ttl=True)).evolve(allow_msg_ttl=None)
    [found] = compare_stream(spec(message_ttl=True), answered)
    assert (found.field, found.expected, found.actual) == ("message_ttl", "true", "false")
    assert found.changeable  # a newer server takes it then, and ensure says so


def test_a_stream_that_was_not_asked_for_it_names_it_to_no_server() -> None:
    assert wanted_stream(spec(message_ttl=False)).allow_msg_ttl is None
    assert "allow_msg_ttl" not in wanted_stream(spec(message_ttl=False)).as_dict()
    assert compare_stream(spec(message_ttl=False), wanted_stream(spec(message_ttl=False))) == []


def test_what_a_stream_does_already_it_goes_on_to_do() -> None:
    there = wanted_stream(spec(message_ttl=True))
    assert compare_stream(spec(message_ttl=False), there) == []
    assert stream_update(spec(message_ttl=False), there).allow_msg_ttl is True
