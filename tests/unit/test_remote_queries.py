"""What of a module other services may ask, and what of the settings of queries cannot work."""

from __future__ import annotations

import sys
import types
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relay.bus import Query, QueryBus
from relay.bus.errors import DuplicateHandler, NoHandler
from relay.bus.queries import Answerable, load_queries
from relay.domain.errors import InvalidHandler, InvalidSubject
from relay.domain.querying import TIMEOUT, is_puback, read_timeout
from tests.unit.settings_support import BASE, Load, loader, refusal

SUBJECT = "sea.queries.case.find"


class FindCase(Query[str]):
    number: int


def find_case(query: FindCase) -> str:
    return f"case {query.number}"


async def find_later(query: FindCase) -> str:
    return f"case {query.number}"


class CalledLater:
    async def __call__(self, query: FindCase) -> str:
        return f"case {query.number}"


def answering(handler: Any = find_case, subject: str = SUBJECT) -> QueryBus:
    bus = QueryBus()
    bus.handles(FindCase, subject=subject)(handler)
    return bus


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("tests_queries")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def below_sea(subject: str) -> bool:
    return subject.startswith("sea.queries.")


def test_the_buses_of_a_module_offer_their_queries_with_a_subject(module: types.ModuleType) -> None:
    bus = answering()
    bus.handles(type("Inner", (Query,), {}))(lambda _query: None)
    vars(module).update(queries=bus, again=bus, other=answering(subject="sea.queries.case.other"), number=7)
    assert sorted(load_queries(module.__name__, below_sea)) == [SUBJECT, "sea.queries.case.other"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, "answers no query"),
        ({"bus": QueryBus()}, "answers no query"),
        ({"one": answering(), "two": answering()}, f"answers {SUBJECT} twice"),
        ({"bus": answering(subject="tea.queries.case.find")}, "which is not among the subjects"),
    ],
)
def test_modules_that_cannot_be_used(module: types.ModuleType, content: dict[str, Any], expected: str) -> None:
    vars(module).update(content)
    with pytest.raises(InvalidHandler, match=expected):
        load_queries(module.__name__, below_sea)


def test_a_module_that_is_missing() -> None:
    with pytest.raises(InvalidHandler, match="tests_nothing") as caught:
        load_queries("tests_nothing", below_sea)
    assert caught.value.field == "queries"


@pytest.mark.parametrize(("handler", "waits"), [(find_case, False), (find_later, True), (CalledLater(), True)])
def test_coroutine_functions_are_known(handler: Any, waits: bool) -> None:
    assert answering(handler).waits(FindCase) is waits


def test_subjects_are_checked() -> None:
    bus = answering()
    with pytest.raises(DuplicateHandler, match=SUBJECT):
        bus.handles(type("Other", (Query,), {}), subject=SUBJECT)
    with pytest.raises(InvalidSubject):
        bus.handles(type("Other", (Query,), {}), subject="sea.queries.>")
    with pytest.raises(NoHandler):
        bus.waits(type("Other", (Query,), {}))


def test_unknown_fields_are_left_out() -> None:
    found = Answerable(FindCase, answering(), waits=False).query({"number": 7, "added": "later"})
    assert found == FindCase(number=7)


@pytest.mark.parametrize(
    ("said", "seconds"), [("250", 0.25), ("99999", 5), ("", 5), ("-1", 5), ("1e3", 5), ("9" * 5_000, 5), ("²", 5)]
)
def test_nobody_waits_longer_than_the_other_side(said: str, seconds: float) -> None:
    assert read_timeout({TIMEOUT: said}, timedelta(seconds=5)) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("body", "is_one"),
    [
        (b'{"stream":"SR","seq":1}', True),
        (b'{"stream":"SR","domain":"x","seq":1,"duplicate":true}', True),
        (b'{"error":{"code":503},"stream":"SR","seq":0}', True),
        (b'{"stream":"SR"}', False),
        (b"null", False),
        (b"{", False),
        (b"[" * 900, False),
    ],
)
def test_pubacks_are_recognised(body: bytes, is_one: bool) -> None:
    assert is_puback(body) is is_one


# --- settings ---

QUERIES = """\
[contexts.sea.queries]
module = "myapp.queries"
"""


def test_a_context_answers_below_its_own_name(load_text: Load) -> None:
    settings = load_text(BASE + QUERIES)
    queries = settings.contexts["sea"].queries
    assert queries is not None
    assert (queries.subjects, queries.timeout) == (("sea.queries.>",), timedelta(seconds=5))
    assert settings.queried() == ["sea.queries.>"]
    assert load_text(BASE).queried() == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ('[contexts.sea.queries]\nmodule = "my-app"\n', "'my-app' is not the name of a module"),
        ("[contexts.sea.queries]\n", "module: is required"),
        (
            QUERIES + '[contexts.sea.streams.kept]\nsubjects = ["sea.queries.case.*"]\n',
            "sea.queries.> overlaps with sea.queries.case.* of kept, which would answer first",
        ),
        (
            QUERIES + '[contexts.vibespro.queries]\nmodule = "b"\nsubjects = ["sea.queries.x"]\n',
            "sea.queries.x overlaps with sea.queries.> of another context",
        ),
    ],
)
def test_settings_of_queries_that_cannot_work(load_text: Load, more: str, expected: str) -> None:
    text = BASE.replace("[contexts.sea.sub", '[contexts.sea.stream]\nname = "SEA"\n[contexts.sea.sub')
    assert expected in refusal(load_text, text + more)


def test_a_stream_that_confirms_nothing_may_keep_queries(load_text: Load) -> None:
    text = BASE.replace("[contexts.sea.sub", '[contexts.sea.stream]\nname = "SEA"\n[contexts.sea.sub')
    kept = '[contexts.sea.streams.kept]\nsubjects = ["sea.queries.case.*"]\nno_ack = true\n'
    assert load_text(text + QUERIES + kept).queried() == ["sea.queries.>"]
