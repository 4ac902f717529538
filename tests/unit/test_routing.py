"""Where events and dead letters go: subjects of types and topics, streams of subjects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.domain.errors import ForeignSubject, InvalidSubject
from relay.domain.routing import Route, Routing, dead_letter_subject, event_subjects, is_template

STREAMS = {"SEA_EVENTS": ("sea.event.>",), "SEA_AUDIT": ("sea.audit.*", "sea.log.case.v1")}
SEA = Routing(context="sea", streams=STREAMS)


def routing(template: str) -> Routing:
    return Routing(context="sea", template=template, streams=STREAMS)


# --- subjects ---


def test_the_default_template_makes_an_event_subject() -> None:
    assert SEA.subject("opened", 3, None) == "sea.event.opened.v3"


def test_another_template_makes_another_subject() -> None:
    assert routing("{context}.events.{name}").subject("LoopCreated", 1, None) == "sea.events.LoopCreated"


def test_a_topic_is_the_subject() -> None:
    assert SEA.subject("opened", 3, "sea.audit.opened") == "sea.audit.opened"


@pytest.mark.parametrize("template", ["{context}.*.{name}", "{context}..{name}", "x " + "{name}", "{name}." * 90])
def test_a_template_cannot_make_a_subject_that_is_not_safe(template: str) -> None:
    with pytest.raises(InvalidSubject) as raised:
        routing(template).subject("opened", 1, None)
    assert raised.value.field == "subject"
    assert not is_template(template)


@pytest.mark.parametrize(
    ("name", "version", "topic", "field"),
    [
        ("*", 1, None, "event_type"),
        ("*", 1, "sea.audit.opened", "event_type"),
        ("opened", 0, None, "event_version"),
        ("opened", 1, "sea.>", "topic"),
    ],
)
def test_neither_template_nor_topic_lets_a_bad_value_pass(
    name: str, version: int, topic: str | None, field: str
) -> None:
    with pytest.raises(InvalidSubject) as raised:
        routing("sea.all").subject(name, version, topic)
    assert raised.value.field == field


# --- topics of others ---

ROUTED = Routing(
    context="sea",
    streams=STREAMS,
    routes=[Route(topics=["land.moved.>"], stream="LAND"), Route(topics=["old.*"], subject="sea.event.old.v1")],
    letters=["morgue.sea.>"],
)


@pytest.mark.parametrize(
    "topic",
    [
        *("land.event.opened.v1", "land.moved", "land", "sea", "sea.event", "seaxevent.opened", "sea.log.case.v2"),
        *(
            "old.a.b",
            "JS.API.STREAM.PURGE.X",
            "land.commands.x",
            "land.commands.a.b.c",
            "land.queries.x",
        ),
    ],
)
def test_a_topic_of_neither_stream_nor_route_is_refused(topic: str) -> None:
    with pytest.raises(ForeignSubject, match="relay outbox retry") as raised:
        ROUTED.subject("opened", 1, topic)
    assert (raised.value.code, raised.value.field) == ("FOREIGN_SUBJECT", "topic")


@pytest.mark.parametrize(
    "topic",
    [
        "_INBOX.x.y",
        "_INBOX_relay.x",
        "sea.dlq.x",
        "land.dlq.sea.event.x.v1",
        "morgue.sea.x",
        "$JS.API.INFO",
        "$SYS.x",
        "$KV.b.k",
        "$O.b.C.x",
    ],
)
def test_neither_letters_nor_subjects_of_the_server_are_topics_though_a_stream_and_a_route_take_all(
    topic: str,
) -> None:
    everything = replace(ROUTED, streams={"ALL": [">"]}, routes=[Route(topics=[">"], stream="ALL")])
    with pytest.raises(InvalidSubject):
        everything.subject("opened", 1, topic)


@pytest.mark.parametrize(
    ("topic", "subject"),
    [
        *(
            (it, it)
            for it in ("sea.audit.opened", "sea.event.any.thing", "land.moved.x", "land.commands.case.open")
        ),
        ("old.a", "sea.event.old.v1"),
    ],
)
def test_a_topic_of_a_stream_or_a_route_and_a_command_leave(topic: str, subject: str) -> None:
    assert ROUTED.subject("opened", 1, topic) == subject


def test_without_streams_nothing_is_known_of_topics() -> None:
    assert Routing(context="sea").subject("opened", 1, "land.event.x") == "land.event.x"


# --- streams ---


@pytest.mark.parametrize(
    ("subject", "stream"),
    [
        (SEA.template, "SEA_EVENTS"),
        ("sea.event.opened.v1", "SEA_EVENTS"),
        ("sea.audit.opened", "SEA_AUDIT"),
        ("sea.audit.{name}", "SEA_AUDIT"),
        ("{context}.audit.{name}.v{version}", None),
        ("{context}.log.{name}.v{version}", "SEA_AUDIT"),
        ("{context}.log.{name}.r{version}", None),
        ("sea.audit", None),
        ("vibes.event.opened.v1", None),
        ("seaxevent.opened", None),
    ],
)
def test_the_stream_with_a_pattern_for_a_subject_stores_it(subject: str, stream: str | None) -> None:
    assert SEA.stream(subject) == stream


def test_the_default_pattern_takes_what_the_default_template_makes() -> None:
    own = Routing(context="sea", streams={"SEA_EVENTS": [event_subjects("sea")]})
    assert own.stream(own.template) == own.stream(own.subject("opened", 1, None)) == "SEA_EVENTS"


# --- dead letters ---


def test_a_pattern_of_subjects_makes_the_pattern_of_their_dead_letters() -> None:
    assert dead_letter_subject("sea", ">") == "sea.dlq.>"
    assert dead_letter_subject("sea", "vibespro.event.*.v1") == "sea.dlq.vibespro.event.*.v1"


def test_a_dead_letter_keeps_the_original_subject_at_its_end() -> None:
    assert dead_letter_subject("sea", "vibespro.event.vibe_created.v1") == "sea.dlq.vibespro.event.vibe_created.v1"


def test_our_longest_subject_is_kept_whole_in_a_dead_letter() -> None:
    longest = ".".join(["x" * 63] * 4)
    assert dead_letter_subject("sea", longest) == "sea.dlq." + longest


def test_a_foreign_subject_of_four_kilobytes_is_cut_to_what_the_protocol_takes() -> None:
    for start in ("", "x"):
        cut = dead_letter_subject("sea", start + "a." * 2_000)
        assert len(cut) < 600
        assert cut.startswith(f"sea.dlq.{start}a.a.")
        assert all(cut.split("."))
