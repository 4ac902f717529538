"""Subjects: what may travel under which name."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.domain.errors import InvalidEvent, InvalidSubject
from relay.domain.subject import EventSubject, check_subject, check_token, check_version

quick = settings(max_examples=100, deadline=None)

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
tokens = st.text(ALPHABET, min_size=1, max_size=64)
versions = st.integers(min_value=1, max_value=999_999_999)

BAD_TOKENS = [
    "", "x" * 65, "a.b", ".", "*", ">", "a*", "a b", " a", "a ", "a\n", "a\r\n", "\t", "a\x00", "é", "\uff41", "٣",
    "a/b", "a:b", "$JS", "{a}", "\ud800", None, 1, b"a", ["a"],
]  # fmt: skip


# --- EventSubject ---


def test_a_subject_is_read_into_context_name_and_version() -> None:
    assert EventSubject.find("vibespro.event.vibe_created.v1") == EventSubject("vibespro", "vibe_created", 1)
    assert EventSubject.find("sea.event.Case-Opened.v12") == EventSubject("sea", "Case-Opened", 12)


def test_a_subject_is_written_as_the_specification_has_it() -> None:
    subject = EventSubject("vibespro", "vibe_created", 1)
    assert subject.value == "vibespro.event.vibe_created.v1"
    assert str(subject) == "vibespro.event.vibe_created.v1"


@quick
@given(context=tokens, name=tokens, version=versions)
@example(context="event", name="event", version=1)
@example(context="v1", name="v1", version=999_999_999)
def test_what_was_written_is_read_back(context: str, name: str, version: int) -> None:
    subject = EventSubject(context, name, version)
    assert EventSubject.find(subject.value) == subject


@quick
@given(st.text(max_size=40) | st.text("ab.v1evnt*> ", max_size=40))
def test_any_text_is_a_subject_that_writes_itself_back_or_none(text: str) -> None:
    subject = EventSubject.find(text)
    assert subject is None or subject.value == text


@pytest.mark.parametrize(
    "text",
    [
        "", "vibespro", "vibespro.event.vibe_created", "vibespro.event.vibe_created.1", "a.event.b.v",
        "a.event.b.v0", "a.event.b.v01", "a.event.b.v-1", "a.event.b.v+1", "a.event.b.v1.5", "a.event.b.vx",
        "a.event.b.V1", "a.events.b.v1", "a.Event.b.v1", ".event.b.v1", "a.event..v1", "a.event.b.c.v1",
        "a.event.*.v1", "a.event.>", "a.event.b.v1 ", " a.event.b.v1", "a.event.b.v1\n", "a.event.b.v٣",
        "é.event.b.v1", "a.event.b.v1234567890", "x" * 65 + ".event.b.v1", "x" * 5_000,
    ],
)  # fmt: skip
def test_a_text_of_another_form_is_no_event_subject(text: str) -> None:
    assert EventSubject.find(text) is None


@pytest.mark.parametrize(
    ("context", "name", "version", "field"),
    [
        ("a.b", "x", 1, "context"),
        ("", "x", 1, "context"),
        ("a", "x.y", 1, "event_type"),
        ("a", ">", 1, "event_type"),
        ("a", "x", 0, "event_version"),
        ("a", "x", "1", "event_version"),
    ],
)
def test_no_subject_is_made_of_bad_parts(context: str, name: str, version: int, field: str) -> None:
    with pytest.raises(InvalidSubject) as raised:
        EventSubject(context, name, version)
    assert raised.value.field == field


# --- tokens, versions, whole subjects ---


@quick
@given(tokens)
@example("x" * 64)
def test_a_token_of_the_safe_alphabet_is_returned_as_it_is(token: str) -> None:
    assert check_token(token, "event_type") == token


@pytest.mark.parametrize("value", BAD_TOKENS)
def test_a_token_that_could_reach_other_filters_is_refused_with_its_field(value: object) -> None:
    with pytest.raises(InvalidSubject) as raised:
        check_token(value, "event_type")
    assert (raised.value.code, raised.value.field) == ("INVALID_SUBJECT", "event_type")


def test_an_error_shows_the_start_of_a_long_value_only() -> None:
    with pytest.raises(InvalidSubject) as raised:
        check_token("x" * 5_000, "event_type")
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize("version", [1, 2, 999_999_999])
def test_a_version_is_a_whole_number_from_one(version: int) -> None:
    assert check_version(version) == version


@pytest.mark.parametrize("version", [0, -1, 1_000_000_000, True, 1.0, "1", None, [1]])
def test_anything_else_is_no_version(version: object) -> None:
    with pytest.raises(InvalidSubject) as raised:
        check_version(version)
    assert raised.value.field == "event_version"


@pytest.mark.parametrize("subject", ["a", "a.b", "sea.event.case_opened.v1", ".".join(["x" * 50] * 5)])
def test_a_subject_of_safe_tokens_is_returned_as_it_is(subject: str) -> None:
    assert check_subject(subject) == subject


@pytest.mark.parametrize(
    "subject",
    [*[bad for bad in BAD_TOKENS if bad != "a.b"], "a..b", ".a", "a.", "a.*", "a.>", "a. b", "a.b\r\nPUB x"],
)
def test_a_subject_with_a_bad_token_is_refused(subject: object) -> None:
    with pytest.raises(InvalidSubject) as raised:
        check_subject(subject)
    assert raised.value.field == "topic"


def test_a_subject_may_have_255_characters_and_no_more() -> None:
    longest = ".".join(["x" * 63] * 4)
    assert len(longest) == 255
    assert check_subject(longest) == longest
    with pytest.raises(InvalidSubject):
        check_subject(longest[:-1] + ".x")


def test_a_subject_of_five_kilobytes_is_refused() -> None:
    """It would close the connection of nats-py for good."""
    with pytest.raises(InvalidSubject) as raised:
        check_subject(".".join(["token"] * 900))
    assert raised.value.code == "INVALID_SUBJECT"


def test_a_bad_subject_is_an_invalid_event_and_a_value_error() -> None:
    assert issubclass(InvalidSubject, InvalidEvent)
    assert issubclass(InvalidSubject, ValueError)
