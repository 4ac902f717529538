"""Words, pictures, rates and addresses of the console; and who may send it forms."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

import relay.ops.console
from relay.domain.errors import InvalidRequest
from relay.domain.life import Step, StepKind
from relay.ops.api.models import models_of, values_of
from relay.ops.console import wording
from relay.ops.console.forms import read
from relay.ops.console.life_picture import draw, entries
from relay.ops.console.overview import FlowSample, Patient, rate
from relay.ops.console.render import is_page, link
from relay.ops.kinds import DEAD_LETTERS, EVENTS, KINDS, TASKS, Kind
from tests.clock import Clock
from tests.unit.ops_support import TOKENS
from tests.unit.test_ops_access import app_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVENTS_PAGE: Any = models_of(EVENTS).page
HERE = Path(relay.ops.console.__file__).parent


# --- words ---


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.042, "42 ms"),
        (0.9999, "1 s"),
        (9.94, "9.9 s"),
        (59, "59 s"),
        (90, "90 s"),
        (7200, "2 h"),
        (2e5, "2.3 d"),
    ],
)
def test_durations_are_told_as_people_say_them(seconds: float, told: str) -> None:
    assert wording.duration(seconds) == told


@pytest.mark.parametrize(("seconds", "told"), [(0.2, "now"), (3, "3 s ago"), (180, "3 min ago"), (-20, "in 20 s")])
def test_times_are_told_from_now(seconds: float, told: str) -> None:
    assert wording.ago(NOW - timedelta(seconds=seconds), NOW) == told


def test_numbers_names_and_sizes() -> None:
    assert [wording.number(it) for it in (12345, 0.25, 3.0, None)] == ["12,345", "0.2", "3", "?"]
    assert [wording.plural(2, it) for it in ("dead letter", "entry", "batch", "duty", "key", "crash")] == [
        "2 dead letters",
        "2 entries",
        "2 batches",
        "2 duties",
        "2 keys",
        "2 crashes",
    ]
    assert wording.plural(1, "task") == "1 task"
    assert [wording.size(it) for it in (12, 2048, 20 * 1024**2)] == ["12 B", "2.0 KB", "20 MB"]
    assert wording.short("0192d1a0-0000-7000-8000-00000000abcd") == "0192d1a0…abcd"
    assert wording.gap(-0.04) == "40 ms before"


def test_every_state_of_every_kind_has_a_colour() -> None:
    states = {state for kind in KINDS.values() for state in kind.states} - {"discarded", "cancelled", "snoozed"}
    assert {state for state in states if wording.tone(state) == "quiet"} == set()


def test_a_code_has_a_meaning() -> None:
    assert wording.meaning("timeout") == "no answer within the time-out"
    assert "503" in wording.meaning("status_503")
    assert "KeyError" in wording.meaning("raised_KeyError")
    assert wording.meaning(None) == ""


# --- rates ---


def samples(*numbers: tuple[float, int | None]) -> deque[FlowSample]:
    return deque(FlowSample(at=at, waiting=0, published=published, handled=None) for at, published in numbers)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([(100, 10)], None),
        ([(100, 10), (105, 60)], 10),
        ([(0, 0), (100, 10), (105, 60)], 10),
        ([(100, 10), (105, None)], None),
        ([(100, 10), (102, None), (105, 60)], 10),
        ([(100, 60), (105, 10)], None),
        ([(100, 10), (100.1, 60)], None),
    ],
)
def test_a_rate_is_that_of_the_last_half_minute(seen: Sequence[tuple[float, int]], expected: float | None) -> None:
    assert rate(samples(*seen), "published") == expected


# --- the picture of a life ---


def step(kind: StepKind, context: str, seconds: float | None, *children: Step) -> Step:
    at = None if seconds is None else NOW + timedelta(seconds=seconds)
    return Step(kind=kind, context=context, id="1", name="n", state="done", at=at, children=children)


def test_a_cause_stands_left_of_its_effect_whatever_the_clocks_say() -> None:
    effect = step(StepKind.MESSAGE, "land", -5, step(StepKind.TASK, "land", None))
    listed = entries([step(StepKind.EVENT, "sea", 0, effect), step(StepKind.ACTION, "sea", 1)])
    drawing = draw(listed)
    places = {dot.entry.letter: (dot.x, dot.y) for dot in drawing.dots}
    assert places["E"][0] < places["M"][0] < places["T"][0] < places["A"][0]
    assert places["E"][1] == places["A"][1] < places["M"][1] == places["T"][1]
    assert [name for name, _ in drawing.lanes] == ["sea", "land"]
    assert (len(drawing.arcs), drawing.left) == (2, 0)
    assert [(it.number, it.depth, it.above) for it in listed] == [(1, 0, None), (2, 1, 1), (3, 2, 2), (4, 0, None)]


def test_of_a_long_life_the_beginning_is_drawn() -> None:
    drawing = draw(entries([step(StepKind.EVENT, "sea", n) for n in range(100)]))
    assert (len(drawing.dots), drawing.left) == (80, 20)


# --- addresses ---


def test_a_filter_is_read_from_an_address() -> None:
    asked = read(
        EVENTS_PAGE, [("status", "dead"), ("status", "failing"), ("since", "6h"), ("error", " "), ("limit", "5")]
    )
    assert (asked.status, asked.error, asked.limit) == (["dead", "failing"], None, 5)
    assert asked.since is not None
    assert timedelta(hours=5.9) < datetime.now(UTC) - asked.since < timedelta(hours=6.1)
    assert read(EVENTS_PAGE, [("since", "2026-01-01")]).since == datetime(2026, 1, 1, tzinfo=UTC)
    letters = read(models_of(DEAD_LETTERS).page, [("class", "poison"), ("reason", "timeout")])
    assert DEAD_LETTERS.wanted(values_of(DEAD_LETTERS, letters), []).kinds[0].value == "poison"


@pytest.mark.parametrize(
    ("name", "text"), [("since", "soon"), ("colour", "red"), ("status", "red"), ("limit", "0")]
)
def test_what_cannot_be_read_is_named(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(EVENTS_PAGE, [(name, text)])
    assert (caught.value.field or "").startswith(name)
    assert ("90d" in (caught.value.hint or "")) == (name == "since")


@pytest.mark.parametrize(
    ("kind", "text"), [(DEAD_LETTERS, "x"), (DEAD_LETTERS, "0"), (DEAD_LETTERS, "9" * 30), (TASKS, "1")]
)
def test_an_id_of_another_form_is_refused(kind: Kind, text: str) -> None:
    with pytest.raises(InvalidRequest):
        kind.key(text)


def test_an_address_holds_any_text() -> None:
    assert link("/explain", id="a&b=/ <>", other=None) == "/explain?id=a%26b%3D%2F+%3C%3E"
    assert link("/e", status=["a", "b"], class_="c") == "/e?status=a&status=b&class=c"
    assert EVENTS.key("javascript:alert(1)") == "javascript:alert(1)"


def test_pages_are_all_but_the_api_and_the_probes() -> None:
    paths = ("/", "/contexts/sea/events", "/apis", "/api/v1/contexts", "/healthz", "/readyz")
    assert [is_page(path) for path in paths] == [True, True, True, False, False, False]


# --- forms ---

OURS = {"Origin": "http://127.0.0.1:8085", "Sec-Fetch-Site": "same-origin"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({**FORM, **OURS}, 503, "DATABASE_UNREACHABLE"),
        ({**FORM, "Sec-Fetch-Site": "same-origin"}, 503, "DATABASE_UNREACHABLE"),
        ({**FORM, "Origin": OURS["Origin"]}, 503, "DATABASE_UNREACHABLE"),
        (FORM, 403, "FOREIGN_ORIGIN"),
        ({**FORM, "Sec-Fetch-Site": "none"}, 403, "FOREIGN_ORIGIN"),
        ({**FORM, "Origin": "null"}, 403, "FOREIGN_ORIGIN"),
        ({**FORM, "Origin": "http://evil.example"}, 403, "FOREIGN_ORIGIN"),
        ({**FORM, **OURS, "Sec-Fetch-Site": "same-site"}, 403, "FOREIGN_ORIGIN"),
        ({**OURS, "Content-Type": "application/json"}, 415, "NOT_A_FORM"),
        ({**OURS, "Content-Type": "multipart/form-data"}, 415, "NOT_A_FORM"),
    ],
)
@pytest.mark.parametrize("guarded", [False, True])
async def test_a_form_comes_from_a_page_of_ours(
    headers: dict[str, str], status: int, code: str, *, guarded: bool
) -> None:
    transport = httpx2.ASGITransport(app=app_of(guarded=guarded))
    token = {"Authorization": f"Bearer {TOKENS['operator']}"} if guarded else {}
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8085") as client:
        path = "/contexts/sea/dead-letters/requeue"
        answer = await client.post(path, content="all=1", headers={**headers, **token})
    assert (answer.status_code, code in answer.text) == (status, True), answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["referrer-policy"] == "same-origin"


# --- answers have an age ---


@pytest.mark.anyio
async def test_an_answer_that_came_while_nobody_waited_is_never_given_as_a_new_one() -> None:
    """Neither a day later, nor after another question: it has the age of its own question."""
    numbers, ready = iter(range(9)), asyncio.Event()

    async def question() -> int:
        number = next(numbers)
        await ready.wait()
        return number

    clock = Clock()
    patient = Patient[int](0.01, clock)
    assert await patient.ask(question) is None
    ready.set()
    await asyncio.sleep(0)
    clock.now += 86_400
    found = await patient.ask(question)
    assert found is not None
    assert (found.answer, found.seconds) == (1, 0)


@pytest.mark.anyio
async def test_while_a_question_hangs_its_last_answer_says_how_old_it_is() -> None:
    held = asyncio.Event()
    held.set()

    async def question() -> str:
        await held.wait()
        return "it"

    clock = Clock()
    patient = Patient[str](0.01, clock)
    first = await patient.ask(question)
    held.clear()
    assert first is not None
    clock.now += 40
    again = await patient.ask(question)
    assert again is first
    assert again.seconds == 40
