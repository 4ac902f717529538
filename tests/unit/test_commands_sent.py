"""Commands for other contexts: how a class is declared, what is sent, which handler is refused at the start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from consumer.functions import check_commands
from consumer.handlers import HandlerRegistry
from relay import Outbox, command, event
from relay.bus import Command
from relay.domain.errors import InvalidEvent, InvalidHandler, InvalidKey, InvalidSubject
from relay.domain.subject import command_name, command_subject
from relay.events import AGGREGATE, as_event, declared_commands
from tests.unit.settings_support import BASE, Load, loader, refused


@pytest.fixture(autouse=True)
def undeclared() -> Iterator[None]:
    """A test knows nothing of what other modules declare, and what it declares is forgotten after it."""
    before = set(declared_commands)
    declared_commands.clear()
    yield
    declared_commands.clear()
    declared_commands.update(before)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def declared(**options: Any) -> type[BaseModel]:
    @command("iteration.start", to="sr", **options)
    class StartIteration(BaseModel):
        iteration_id: str | None = "iter_1"

    return StartIteration


def handler(_payload: dict[str, Any]) -> None:
    """Do nothing."""


# --- sending ---


def test_a_command_goes_to_the_subject_of_the_one_who_executes_it() -> None:
    sent = as_event(declared(version=2, aggregate_id="iteration_id")())
    assert (sent.topic, sent.event_type, sent.event_version) == (
        "sr.commands.iteration.start",
        "iteration_start",
        2,
    )
    assert (sent.aggregate_type, sent.aggregate_id, sent.partition_key) == ("iteration", "iter_1", AGGREGATE)


def test_a_command_about_no_aggregate_has_no_order() -> None:
    one, two = as_event(declared()()), as_event(declared()())
    assert one.partition_key is None
    assert isinstance(one.id, UUID)
    assert (one.aggregate_id, two.aggregate_id) == (str(one.id), str(two.id))


def test_a_command_without_the_id_of_its_aggregate_is_refused() -> None:
    outbox, session = Outbox("vibespro", undeclared=True), object()
    with pytest.raises(InvalidKey, match="aggregate_id"):
        outbox.add(session, declared(aggregate_id="iteration_id")(iteration_id=None))  # type: ignore[call-overload]


def test_a_command_of_the_bus_can_be_sent() -> None:
    @command("iteration.start", to="sr")
    class StartIteration(Command[None]):
        iteration_id: str

    assert as_event(StartIteration(iteration_id="iter_1")).topic == "sr.commands.iteration.start"


@pytest.mark.parametrize("name", ["start", "iteration.start.now", "iteration.", "iteration.*", "iter ation.x", ""])
def test_a_name_is_a_domain_and_an_action(name: str) -> None:
    with pytest.raises(InvalidSubject):
        command(name, to="sr")


def test_what_a_declaration_cannot_use_is_refused() -> None:
    with pytest.raises(InvalidSubject, match="to"):
        command("iteration.start", to="s.r")
    with pytest.raises(InvalidSubject, match="event_version"):
        command("iteration.start", to="sr", version=0)
    with pytest.raises(InvalidEvent, match="no field 'id'"):
        declared(aggregate_id="id")


def test_the_name_is_read_from_the_subject() -> None:
    assert command_name(command_subject("sr", "iteration.start")) == "iteration.start"
    for other in (
        "sr.event.iteration.v1",
        "sr.commands.start",
        "sr.commands.a.b.c",
        "commands.a.b",
        "sr.commands.>",
    ):
        assert command_name(other) is None


# --- handling ---


def test_a_handler_takes_a_command_by_its_class_or_its_name() -> None:
    for kind in (declared(), "iteration.start"):
        registry = HandlerRegistry()
        registry.handles(kind)(handler)
        assert registry.commands
        assert registry.find("iteration.start", 1) is not None
        assert registry.find("iteration_start", 1) is None


def test_the_class_of_an_event_brings_its_type_and_version() -> None:
    @event("vibe_created", version=3, aggregate_type="vibe", aggregate_id="id")
    class VibeCreated(BaseModel):
        id: str

    registry = HandlerRegistry()

    registry.handles(VibeCreated)(handler)
    assert list(registry.handlers) == [("vibe_created", 3)]
    assert not registry.commands


def test_a_second_handler_of_a_command_is_refused() -> None:
    registry = HandlerRegistry()

    registry.handles(declared())(handler)
    with pytest.raises(InvalidHandler, match=r"iteration\.start v1 .*\.handler\b"):
        registry.handles("iteration.start")(handler)


def test_classes_that_cannot_be_handled() -> None:
    with pytest.raises(InvalidHandler, match="BaseModel"):
        HandlerRegistry().handles(BaseModel)
    with pytest.raises(InvalidHandler, match="version"):
        HandlerRegistry().handles(declared(), version=2)
    with pytest.raises(InvalidHandler, match=r"iteration\.\.start"):
        HandlerRegistry().handles("iteration..start")


@pytest.mark.parametrize("filter_subject", ["sr.commands.>", "sr.commands.iteration.*", "*.commands.>"])
def test_a_declared_command_without_handler_is_refused(filter_subject: str) -> None:
    registry = HandlerRegistry("myapp")
    registry.handles("oracle.run")(handler)
    check_commands(registry, filter_subject)
    declared(version=2)
    with pytest.raises(InvalidHandler, match=r"iteration\.start v2 .*\bmyapp\b.*oracle"):
        check_commands(registry, filter_subject)
    registry.handles("iteration.start", version=2)(handler)
    check_commands(registry, filter_subject)


def test_a_filter_for_one_command_needs_its_handler() -> None:
    registry = HandlerRegistry()
    registry.handles("iteration.start")(handler)
    check_commands(registry, "sr.commands.iteration.start")
    with pytest.raises(InvalidHandler, match=r"oracle\.run") as caught:
        check_commands(registry, "sr.commands.oracle.run")
    assert caught.value.field == "handler"


@pytest.mark.parametrize("filter_subject", ["sr.event.>", "sr.>", ">", "sr.commands.oracle.*", "sea.commands.>"])
def test_commands_that_do_not_come_here_need_no_handler(filter_subject: str) -> None:
    declared()
    check_commands(HandlerRegistry(), filter_subject)


# --- one consumer (settings) ---


def two(first: str, second: str, subjects: str = "sr.>") -> str:
    """Two contexts with a subscription of the same stream each."""
    text = BASE.replace("VIBESPRO_EVENTS", "SR").replace("vibespro.event.>", first)
    text += f'stream = {{name = "SR", subjects = ["{subjects}", "vibespro.event.>"]}}\n'
    return f"""{text}[contexts.vibespro.subscriptions.commands]
stream = "SR"
filter_subject = "{second}"
handler = "http://127.0.0.1:8000/handle"
"""


@pytest.mark.parametrize(
    ("first", "second", "subjects"),
    [
        ("sr.commands.>", "sr.commands.iteration.*", "sr.>"),
        ("sr.>", "sr.commands.iteration.start", "sr.>"),
        ("sr.>", "sr.>", "sr.commands.>"),
    ],
)
def test_two_consumers_of_a_command_are_refused(load: Load, first: str, second: str, subjects: str) -> None:
    error = refused(load, two(first, second, subjects))
    assert error.field == "contexts.vibespro.subscriptions.commands.filter_subject"
    assert "commands" in error.message


@pytest.mark.parametrize(
    ("first", "second", "subjects"),
    [
        ("sr.commands.iteration.*", "sr.commands.oracle.*", "sr.commands.>"),
        ("sr.event.>", "sr.event.>", "sr.>"),
        ("sr.>", "sr.>", "sr.event.>"),
    ],
)
def test_consumers_of_different_commands_or_of_events_are_not(
    load: Load, first: str, second: str, subjects: str
) -> None:
    assert len(load(two(first, second, subjects)).contexts) == 2
