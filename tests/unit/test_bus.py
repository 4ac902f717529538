"""Commands, queries and events without a database: what is valid, who handles what, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from pydantic import Field, model_validator

from relay.bus import (
    NOTHING,
    Command,
    CommandBus,
    DomainEvent,
    DomainEventBus,
    Failed,
    Nothing,
    Ok,
    Query,
    QueryBus,
    RequestContext,
    Some,
)
from relay.bus.errors import DuplicateHandler, InvalidCommand, InvalidQuery, NoHandler, NothingFound
from relay.domain.errors import DomainError, InvalidHandler, RelayError


class Open(Command[str]):
    title: Annotated[str, Field(min_length=1, max_length=20)]
    secret: str = ""

    @model_validator(mode="after")
    def _no_secret_in_title(self) -> Open:
        if self.secret and self.secret in self.title:
            raise ValueError("the title tells the secret")
        return self


class Find(Query[str]):
    number: Annotated[int, Field(gt=0)]


class Taken(DomainError):
    code = "TAKEN"


# --- validation ---


@pytest.mark.parametrize(
    ("make", "error", "field", "text"),
    [
        (lambda: Open(title=""), InvalidCommand, "title", "INVALID_COMMAND [title]: Open is not valid: title: "),
        (Open, InvalidCommand, "title", "Field required"),
        (lambda: Open(title="x", colour="red"), InvalidCommand, "colour", "Extra inputs"),
        (lambda: Open(title="a b", secret="b"), InvalidCommand, None, "the title tells the secret"),
        (lambda: Find(number=0), InvalidQuery, "number", "INVALID_QUERY [number]: Find is not valid: number: "),
    ],
)
def test_what_is_not_valid_is_not_constructed(
    make: Callable[[], object], error: type[RelayError], field: str | None, text: str
) -> None:
    with pytest.raises(error) as raised:
        make()
    assert raised.value.field == field
    assert text in str(raised.value)


def test_the_error_does_not_tell_what_was_given() -> None:
    with pytest.raises(InvalidCommand) as raised:
        Open(title="a password much too long", secret="hunter2")
    assert "password" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_command_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Open(title="x").title = "y"


# --- who handles what ---


def test_each_command_goes_to_its_one_handler() -> None:
    bus = CommandBus()
    bus.handles(Open)(lambda command: command.title.upper())
    assert bus.dispatch(Open(title="x")) == Ok("X")


@pytest.mark.parametrize(("bus", "message"), [(CommandBus(), Open), (QueryBus(), Find)])
def test_a_second_handler_is_refused(bus: Any, message: type) -> None:
    bus.handles(message)(first)
    with pytest.raises(DuplicateHandler, match=rf"DUPLICATE_HANDLER .*{message.__name__} .*\.first "):
        bus.handles(message)(lambda _: None)


def first(_: object) -> None: ...


def test_what_nobody_handles_is_refused() -> None:
    with pytest.raises(NoHandler, match=r"NO_HANDLER: .*\bcommand Open"):
        CommandBus().dispatch(Open(title="x"))
    with pytest.raises(NoHandler, match=r"NO_HANDLER: .*\bquery Find"):
        QueryBus().ask(Find(number=1))


@pytest.mark.parametrize(
    "function", [lambda: None, lambda a, b, c: None, lambda a, *, b: None, "not a function"], ids=range(4)
)
def test_a_function_that_cannot_be_called_is_refused(function: Any) -> None:
    for register in (CommandBus().handles(Open), DomainEventBus().on(DomainEvent)):
        with pytest.raises(InvalidHandler):
            register(function)


def test_a_query_handler_gets_no_unit_of_work() -> None:
    with pytest.raises(InvalidHandler, match=r"take \(message\)\)"):
        QueryBus().handles(Find)(lambda query, unit: None)


def test_defaults_do_not_count() -> None:
    bus = CommandBus()
    bus.handles(Open)(lambda command, suffix="!": command.title + suffix)
    assert bus.dispatch(Open(title="x")) == Ok("x!")


# --- what comes back ---


@pytest.mark.parametrize(
    ("answer", "result"),
    [("x", Ok("x")), (None, Ok(None)), (Ok("y"), Ok("y")), (error := Failed(Taken("no")), error)],
)
def test_a_value_is_ok_and_a_result_stays(answer: object, result: object) -> None:
    bus = CommandBus()
    bus.handles(Open)(lambda _: answer)
    assert bus.dispatch(Open(title="x")) == result


def test_a_domain_error_is_a_failed_and_other_errors_stay_errors() -> None:
    bus = CommandBus()
    raised: list[Exception] = [Taken("the title is taken"), OSError("disk")]

    @bus.handles(Open)
    def refuse(_: Open) -> None:
        raise raised.pop(0)

    match bus.dispatch(Open(title="x")):
        case Failed(Taken(message="the title is taken")) as failed:
            assert failed.code == "TAKEN"
        case other:
            pytest.fail(str(other))
    with pytest.raises(OSError, match="disk"):
        bus.dispatch(Open(title="x"))


@pytest.mark.parametrize(
    ("answer", "found"),
    [("x", Some("x")), ([], Some([])), (None, NOTHING), (Some(None), Some(None)), (NOTHING, NOTHING)],
)
def test_none_is_nothing_and_everything_else_something(answer: object, found: object) -> None:
    bus = QueryBus()
    bus.handles(Find)(lambda _: answer)
    assert bus.ask(Find(number=1)) == found


def test_unwrapping() -> None:
    assert (Ok(1).unwrap(), Some(2).unwrap()) == (1, 2)
    with pytest.raises(Taken):
        Failed(Taken("no")).unwrap()
    with pytest.raises(NothingFound, match="NOTHING_FOUND"):
        Nothing().unwrap()


# --- async ---


@pytest.mark.anyio
async def test_async_handlers_are_awaited() -> None:
    import asyncio

    commands, queries = CommandBus(), QueryBus()

    @commands.handles(Open)
    async def open_(command: Open) -> str:
        await asyncio.sleep(0)
        return command.title

    @queries.handles(Find)
    async def find(query: Find) -> int:
        await asyncio.sleep(0)
        return query.number

    assert await commands.dispatch_async(Open(title="x")) == Ok("x")
    assert await queries.ask_async(Find(number=3)) == Some(3)
    with pytest.raises(InvalidHandler, match="await dispatch_async"):
        commands.dispatch(Open(title="x"))


# --- events ---


class Opened(DomainEvent):
    title: str


def test_an_event_has_an_id_of_its_own() -> None:
    one, other = Opened(title="x"), Opened(title="x")
    assert isinstance(one.id, UUID)
    assert one.id != other.id
    assert one.occurred_at.tzinfo is not None
    assert not {"correlation_id", "causation_id"} & set(Opened.model_fields)


@pytest.mark.anyio
async def test_an_event_goes_to_all_its_handlers_in_order_with_itself_as_the_cause() -> None:
    bus, heard, correlation = DomainEventBus(), [], uuid4()
    for number, kind in enumerate([Opened, DomainEvent, Opened]):

        @bus.on(kind)
        def hear(event: Opened, number: int = number) -> None:
            heard.append((number, event, RequestContext.current()))

    class Closed(DomainEvent):
        pass

    @bus.on(Closed)
    async def never(_: Closed) -> None:
        heard.append(None)

    event = Opened(title="x")
    with RequestContext(correlation_id=correlation, causation_id=uuid4()).use():
        await bus.dispatch(event, None)
    context = RequestContext(correlation_id=correlation, causation_id=event.id)
    assert heard == [(number, event, context) for number in range(3)]
