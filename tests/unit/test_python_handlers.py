"""The registry of Python handlers: what is refused when it is declared, and which function an event comes to."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
import pytest
from pydantic import BaseModel, ConfigDict
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer import handlers
from consumer.functions import check_subscriptions
from consumer.handlers import HandlerRegistry, IncomingEvent, Inject, MessageContext, load
from relay.domain.errors import InvalidHandler, Poison

if TYPE_CHECKING:
    from decimal import Decimal


class Vibe(BaseModel):
    title: str
    by: UUID | None = None


class Plain:
    """Nothing that pydantic could validate."""


def event(payload: Any, version: int = 1, event_type: str = "vibe_created") -> IncomingEvent:
    return IncomingEvent(
        message_id=uuid4(),
        subject=f"up.event.{event_type}.v{version}",
        event_type=event_type,
        event_version=version,
        occurred_at=None,
        correlation_id=None,
        causation_id=None,
        partition_key=None,
        headers={},
        payload=payload,
    )


def registered(function: Callable[..., Any]) -> handlers.Handler:
    registry = HandlerRegistry()
    assert registry.handles("vibe_created")(function) is function
    return registry.handlers["vibe_created", 1]


# --- the payload ---


def test_a_payload_that_holds_no_text_is_poison_and_nobody_else_is_blamed() -> None:
    def handle(vibe: Vibe) -> None: ...

    with pytest.raises(Poison, match="surrogate"):
        registered(handle).argument(event({"title": "\ud800"}))


def test_a_payload_is_validated_into_its_model() -> None:
    def handle(vibe: Vibe) -> None: ...

    argument = registered(handle).argument(event({"title": "Hello", "by": str(uuid4())}))
    assert isinstance(argument, Vibe)
    assert isinstance(argument.by, UUID)


def test_a_strict_model_takes_the_text_of_json() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        by: UUID

    def handle(vibe) -> None: ...

    handle.__annotations__["vibe"] = Strict
    assert registered(handle).argument(event({"by": str(uuid4())})).by


def test_a_payload_that_does_not_fit_is_poison_and_names_the_fields_and_not_what_they_hold() -> None:
    def handle(vibe: Vibe) -> None: ...

    with pytest.raises(Poison) as caught:
        registered(handle).argument(event({"title": 7777, "by": "s3cret"}))
    message = caught.value.message
    assert (
        "vibe_created v1 does not fit its handler: string_type at payload.title; uuid_parsing at payload.by"
        in message
    )
    assert "7777" not in message
    assert "s3cret" not in message


def test_many_misfits_are_cut_short() -> None:
    class Wide(BaseModel):
        a: int
        b: int
        c: int
        d: int
        e: int

    def handle(vibe) -> None: ...

    handle.__annotations__["vibe"] = Wide
    with pytest.raises(Poison, match=r"payload\.c .*\b2\b"):
        registered(handle).argument(event({}))


def test_text_that_is_no_unicode_is_poison() -> None:
    def handle(vibe: Vibe) -> None: ...

    with pytest.raises(Poison):
        registered(handle).argument(event({"title": "\ud800"}))


def test_the_raw_event_and_plain_json_need_no_model() -> None:
    def raw(incoming: IncomingEvent) -> None: ...
    def anything(payload: dict[str, Any]) -> None: ...

    incoming = event({"title": "x"})
    assert registered(raw).argument(incoming) is incoming
    assert registered(anything).argument(incoming) == {"title": "x"}


# --- what else a handler may ask for ---


def test_parameters_are_injected_by_type_whatever_their_names_and_order() -> None:
    def handle(
        vibe: Vibe,
        where: MessageContext,
        raw: psycopg.Connection[Any],
        *,
        db: Session,
        incoming: IncomingEvent,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> Any:
        return vibe, where, raw, db, incoming, clock()

    handler = registered(handle)
    assert handler.signature.in_transaction
    assert not handler.signature.is_async
    values: dict[Inject, Any] = {kind: kind.value for kind in Inject}
    assert handler.call("vibe", values) == ("vibe", "context", "connection", "session", "event", 0.0)


def test_an_async_handler_takes_async_sessions() -> None:
    async def handle(vibe: Vibe, session: AsyncSession, connection: psycopg.AsyncConnection) -> None: ...

    handler = registered(handle)
    assert handler.signature.is_async
    assert handler.signature.in_transaction


def test_without_session_or_connection_there_is_no_transaction() -> None:
    def handle(vibe: Vibe, context: MessageContext) -> None: ...

    assert not registered(handle).signature.in_transaction


def _no_parameter() -> None: ...
def _no_annotation(vibe) -> None: ...
def _session_first(session: Session) -> None: ...
def _unknown_type(vibe: Vibe, plain: Plain) -> None: ...
def _no_annotation_later(vibe: Vibe, session) -> None: ...
def _async_in_sync(vibe: Vibe, session: AsyncSession) -> None: ...
async def _sync_in_async(vibe: Vibe, session: Session) -> None: ...
async def _connection_in_async(vibe: Vibe, connection: psycopg.Connection[Any]) -> None: ...
def _star(vibe: Vibe, *more: Session) -> None: ...
def _star_star(vibe: Vibe, **more: Session) -> None: ...
def _positional(vibe: Vibe, /) -> None: ...
def _generator(vibe: Vibe) -> Iterator[int]:
    yield 1


async def _async_generator(vibe: Vibe):
    yield 1


def _type_checking_only(vibe: Decimal) -> None: ...
def _not_validated(vibe: Plain) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_no_parameter, "takes no payload"),
        (_no_annotation, "(vibe)]: has no annotation"),
        (_session_first, "(session)]: is the session"),
        (_unknown_type, "(plain)]: has the type"),
        (_no_annotation_later, "(session)]: has no annotation"),
        (_async_in_sync, "takes Session or psycopg.Connection"),
        (_sync_in_async, "takes AsyncSession or psycopg.AsyncConnection"),
        (_connection_in_async, "takes AsyncSession or psycopg.AsyncConnection"),
        (_star, "(more)]: must be a parameter that can be given by its name"),
        (_star_star, "(more)]: must be a parameter that can be given by its name"),
        (_positional, "(vibe)]: must be a parameter that can be given by its name"),
        (_generator, "yields"),
        (_async_generator, "yields"),
        (_type_checking_only, "TYPE_CHECKING"),
        (_not_validated, "(vibe)]: cannot be validated"),
        (Vibe, "is not a function"),
        (functools.partial(_unknown_type), "is not a function"),
    ],
)
def test_a_handler_that_could_not_be_called_is_refused_where_it_is_declared(
    function: Callable[..., Any], expected: str
) -> None:
    with pytest.raises(InvalidHandler) as caught:
        HandlerRegistry().handles("vibe_created")(function)
    text = str(caught.value)
    assert text.startswith("INVALID_HANDLER")
    assert expected in text
    if "not a function" not in expected:
        assert f"{__name__}.{function.__name__}" in text
        assert f"{__file__}:" in text


def _no_type_at_all(vibe, context: MessageContext, session: AsyncSession) -> None: ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (_no_type_at_all, "def _no_type_at_all(vibe: VibeCreated, context: MessageContext, session: Session)"),
        (_async_in_sync, "def _async_in_sync(vibe: Vibe, session: Session)"),
        (_connection_in_async, "async def _connection_in_async(vibe: Vibe, connection: psycopg.AsyncConnection)"),
        (_unknown_type, "def _unknown_type(vibe: Vibe)"),
        (_star, "def _star(vibe: Vibe, more: Session)"),
        (_positional, "def _positional(payload: VibeCreated)"),
    ],
)
def test_a_refused_handler_is_shown_as_it_can_be_written(function: Callable[..., Any], written: str) -> None:
    with pytest.raises(InvalidHandler) as caught:
        HandlerRegistry().handles("vibe_created")(function)
    assert f"(write {written}" in str(caught.value)


@pytest.mark.parametrize(
    ("event_type", "version"), [("vibe created", 1), ("vibe..created", 1), ("", 1), ("x", 0), ("x", True)]
)
def test_what_no_event_can_be_called_is_refused(event_type: str, version: int) -> None:
    with pytest.raises(InvalidHandler):
        HandlerRegistry().handles(event_type, version=version)
    with pytest.raises(InvalidHandler):
        HandlerRegistry().upcasts(event_type, from_version=version)


def test_two_handlers_for_one_version_are_refused_and_stacked_names_are_not() -> None:
    registry = HandlerRegistry()

    @registry.handles("vibe_created", version=1)
    @registry.handles("vibe_created", version=2)
    @registry.handles("vibe_updated")
    def handle(vibe: Vibe) -> None: ...

    assert registry.known() == "vibe_created v1, vibe_created v2, vibe_updated v1"

    def second(vibe: Vibe) -> None: ...

    with pytest.raises(InvalidHandler, match=r"vibe_created v1 .*\.handle\b"):
        registry.handles("vibe_created")(second)


# --- versions ---


def to_2(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "two": True}


def to_3(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "three": True}


def handle_any(payload: dict[str, Any]) -> None: ...


def versions(handled: list[int], upcast: dict[int, Any]) -> HandlerRegistry:
    registry = HandlerRegistry()
    for version in handled:
        registry.handles("vibe_created", version=version)(handle_any)
    for version, function in upcast.items():
        registry.upcasts("vibe_created", from_version=version)(function)
    return registry


@pytest.mark.parametrize(
    ("handled", "upcast", "arrives", "handled_as"),
    [
        ([1], {}, 1, 1),
        ([1, 3], {1: to_2, 2: to_3}, 1, 1),  # a handler of its own comes first
        ([3], {1: to_2, 2: to_3}, 1, 3),
        ([3], {1: to_2, 2: to_3}, 2, 3),
        ([2, 3], {1: to_2, 2: to_3}, 1, 3),  # the newest
        ([2, 3], {1: to_2}, 1, 2),  # that can be reached
        ([3], {1: to_2}, 1, None),
        ([3], {2: to_3}, 1, None),
        ([1], {}, 2, None),  # never down
        ([], {1: to_2}, 1, None),
    ],
)
def test_which_handler_an_event_comes_to(
    handled: list[int], upcast: dict[int, Any], arrives: int, handled_as: int | None
) -> None:
    route = versions(handled, upcast).find("vibe_created", arrives)
    assert (route and route.version) == handled_as


def test_a_chain_of_upcasters_converts_step_by_step() -> None:
    route = versions([3], {1: to_2, 2: to_3}).find("vibe_created", 1)
    assert route
    arrived = event({"title": "x"})
    upcast = route.upcast(arrived)
    assert (upcast.event_version, upcast.payload) == (3, {"title": "x", "two": True, "three": True})
    assert upcast.message_id == arrived.message_id
    assert arrived.payload == {"title": "x"}


async def _async_upcaster(payload: Any) -> None: ...
def _two_parameters(payload: Any, more: Any) -> None: ...


@pytest.mark.parametrize("function", [_async_upcaster, _two_parameters, Vibe])
def test_an_upcaster_that_could_not_be_called_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidHandler):
        HandlerRegistry().upcasts("vibe_created", from_version=1)(function)


def test_two_upcasters_from_one_version_are_refused() -> None:
    with pytest.raises(InvalidHandler, match=r"vibe_created v1 .*\bto_2\b"):
        versions([], {1: to_2}).upcasts("vibe_created", from_version=1)(to_3)


# --- several subscriptions ---


def of_each(registry: HandlerRegistry, *names: str) -> dict[str, str]:
    """Which function each subscription calls for ``vibe_created`` 1."""
    found = {name: registry.of(name).find("vibe_created", 1) for name in names}
    return {name: route.handler.function.__name__ if route else "" for name, route in found.items()}


def test_a_function_is_called_for_the_subscriptions_that_it_names_and_without_a_name_for_all() -> None:
    registry = HandlerRegistry()

    @registry.handles("vibe_created", subscription="stock")
    def reserve(vibe: Vibe) -> None: ...

    @registry.handles("vibe_created", subscription=["audit", "log"])
    def note(vibe: Vibe) -> None: ...

    @registry.handles("vibe_updated")
    def update(vibe: Vibe) -> None: ...

    assert of_each(registry, "stock", "audit", "log", "other") == {
        "stock": "reserve",
        "audit": "note",
        "log": "note",
        "other": "",
    }
    assert all(registry.of(name).find("vibe_updated", 1) for name in ("stock", "other"))
    assert registry.known() == "vibe_created v1, vibe_updated v1"
    check_subscriptions([("stock", registry), ("audit", registry), ("log", registry)])
    with pytest.raises(InvalidHandler, match=r"for log, no subscription that uses it"):
        check_subscriptions([("stock", registry), ("audit", registry), ("log", HandlerRegistry())])


@pytest.mark.parametrize(
    ("first", "second"), [(None, "audit"), ("audit", None), ("audit", ["audit", "log"]), (None, None)]
)
def test_two_functions_for_one_message_are_refused(first: Any, second: Any) -> None:
    registry = HandlerRegistry()
    registry.handles("vibe_created", subscription=first)(handle_any)
    with pytest.raises(InvalidHandler, match=r"vibe_created v1 .*\bhandle_any\b"):
        registry.handles("vibe_created", subscription=second)(handle_any)


@pytest.mark.parametrize(
    "names", ["", [], ["audit", ""], [None], ["audit", None], [["audit"]], [5], 5, b"x", object()]
)
def test_what_names_no_subscription_is_refused(names: Any) -> None:
    with pytest.raises(InvalidHandler):
        HandlerRegistry().handles("vibe_created", subscription=names)


def test_a_subscription_for_which_a_module_has_nothing_is_refused() -> None:
    registry = HandlerRegistry("shop")
    registry.handles("vibe_created", subscription="audit")(handle_any)
    with pytest.raises(InvalidHandler, match="shop registers no handler for the subscription stock"):
        registry.of("stock")


# --- modules ---


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Make a module of a text; its registrations are forgotten after the test."""
    monkeypatch.setattr(handlers, "_modules", {})

    def make(name: str, text: str) -> None:
        made = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        exec("from typing import Any\nfrom consumer.handlers import handles, upcasts\n" + text, made.__dict__)

    return make


HANDLE = "@handles({0!r})\ndef handle(payload: Any) -> None: ...\n"


def test_a_module_brings_its_own_handlers_and_those_of_its_submodules_only(
    module: Callable[[str, str], None],
) -> None:
    module("shop", HANDLE.format("a"))
    module("shop.orders", HANDLE.format("b"))
    module("shopping", HANDLE.format("c"))
    module("other", HANDLE.format("a"))
    assert load("shop").known() == "a v1, b v1"
    assert load("shop.orders").known() == "b v1"
    assert load("other").known() == "a v1"


def test_submodules_that_handle_the_same_are_refused(module: Callable[[str, str], None]) -> None:
    module("shop", HANDLE.format("a"))
    module("shop.orders", HANDLE.format("a"))
    with pytest.raises(InvalidHandler, match=r"a v1 .*\bshop\.handle\b"):
        load("shop")


def test_a_module_without_handlers_is_refused(module: Callable[[str, str], None]) -> None:
    module("shop", "")
    with pytest.raises(InvalidHandler, match="shop"):
        load("shop")


@pytest.mark.parametrize("name", ["no_such_module", "no_such_package.handlers", "consumer.no_such_module"])
def test_a_module_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InvalidHandler, match=f"there is no module '{name}'"):
        load(name)


def test_an_error_inside_the_module_is_not_hidden(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_handlers.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load("broken_handlers")
