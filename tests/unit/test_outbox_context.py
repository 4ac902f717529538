"""An outbox of a context that nobody has declared is refused, where it can be known what is declared."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from relay import Event, Outbox
from relay.domain.errors import ForeignSubject, UnknownContext
from relay.settings import declared_contexts

FILE = '[contexts.sea]\ndatabase_url = "${NO}"\n[contexts.city-one]\nnonsense = 1\n'


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("relay.outbox.declared_contexts", declared_contexts)
    return tmp_path


def test_a_typo_is_refused_with_the_names_that_are_there(directory: Path) -> None:
    (directory / "relay.toml").write_text(FILE)
    assert [Outbox(name).context for name in ("sea", "city-one")] == ["sea", "city-one"]
    with pytest.raises(UnknownContext) as caught:
        Outbox("see")
    assert str(caught.value) == (
        "UNKNOWN_CONTEXT [context]: relay.toml declares no context 'see' "
        "(it declares city-one, sea; undeclared=True allows those of another configuration)"
    )
    assert Outbox("see", undeclared=True).context == "see"


def test_the_file_of_the_variable_counts_and_a_change_of_it_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "relay.toml").write_text(FILE)
    other = directory / "other.toml"
    other.write_text("[contexts.shop]\n")
    monkeypatch.setenv("RELAY_CONFIG", str(other))
    Outbox("shop")
    with pytest.raises(UnknownContext, match=r"other\.toml"):
        Outbox("sea")
    other.write_text("[contexts.shop]\n[contexts.sea]\n")
    Outbox("sea")


@pytest.mark.parametrize("text", [None, "no TOML", "contexts = 7\n", '[logging]\nlevel = "info"\n'])
def test_without_declarations_any_name_is_taken(directory: Path, text: str | None) -> None:
    if text is not None:
        (directory / "relay.toml").write_text(text)
    assert Outbox("any").context == "any"


def test_variables_declare_contexts_too(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "relay.toml").write_text('[logging]\nlevel = "info"\n')
    monkeypatch.setenv("RELAY_CONTEXTS__SEA__DATABASE_URL", "postgresql://")
    Outbox("sea")
    with pytest.raises(UnknownContext):
        Outbox("see")


def test_a_file_that_is_not_there_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_CONFIG", "/nowhere/relay.toml")
    assert Outbox("any").context == "any"


# --- topics ---

STREAMS = """
[contexts.sea]
routes = [{ topics = "old.*, land.moved.>", stream = "LAND" }]
[contexts.sea.stream]
subjects = ["sea.event.>", "sea.moved"]
[contexts.sea.streams.extra]
subjects = ["extra.*"]
[contexts.bare]
"""


def added(context: str, topic: str) -> None:
    """Check an event before it is written anywhere."""
    event = Event(event_type="made", aggregate_type="a", aggregate_id="1", payload={}, topic=topic)
    with Session(create_engine("postgresql+psycopg://")) as session:
        Outbox(context).add(session, event)


@pytest.mark.parametrize(
    "topic", ["sea.event.x", "sea.moved", "extra.x", "old.x", "land.moved.x.y", "city.commands.a.b"]
)
def test_a_topic_of_its_streams_and_routes_is_taken(directory: Path, topic: str) -> None:
    (directory / "relay.toml").write_text(STREAMS)
    added("sea", topic)


@pytest.mark.parametrize(
    ("context", "topic"), [("sea", "land.event.x.v1"), ("sea", "extra.x.y"), ("bare", "bare.x")]
)
def test_a_topic_of_others_is_refused_where_it_is_added(directory: Path, context: str, topic: str) -> None:
    (directory / "relay.toml").write_text(STREAMS)
    with pytest.raises(ForeignSubject, match="FOREIGN_SUBJECT"):
        added(context, topic)
    added("bare", "bare.event.x")


def test_what_variables_may_change_and_what_cannot_be_read_refuses_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "relay.toml").write_text(STREAMS)
    with monkeypatch.context() as patch:
        patch.setenv("RELAY_CONTEXTS__SEA__STREAM__SUBJECTS", "sea.>")
        added("sea", "land.event.x.v1")
    (directory / "relay.toml").write_text("[contexts.sea]\nstreams = 7\nroutes = 'x'\n")
    added("sea", "land.event.x.v1")
