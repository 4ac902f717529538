"""What is told of failures: codes and places. Nothing here may repeat what somebody sent."""

from __future__ import annotations

import importlib
import io
import json
import logging
import re
import subprocess
import sys
import urllib.error
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch
from uuid import uuid4

import psycopg
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator
from sqlalchemy import create_engine, text

from relay.bus import Command
from relay.bus.errors import InvalidCommand
from relay.domain.disclosure import answered, printable, safe_text, stack_of, trace, with_stack, words
from relay.domain.errors import Poison
from relay.domain.facts import TaskFailed
from relay.domain.reasons import code_of
from relay.execution.calls import answer
from relay.telemetry.logs import LogFacts, configure

IBAN = "DE89370400440532013000"


class Account(BaseModel):
    iban: str
    by: dict[str, int] = {}

    @field_validator("iban")
    @classmethod
    def check(cls, value: str) -> str:
        raise ValueError(f"{value} is no IBAN")


def validation() -> None:
    Account.model_validate({"iban": IBAN, "by": {IBAN: "x"}})


def plain() -> None:
    raise ValueError(IBAN)


def chained() -> None:
    try:
        plain()
    except ValueError as error:
        raise KeyError(IBAN) from error


def driver() -> None:
    raise psycopg.errors.InvalidTextRepresentation(f'invalid input syntax for type uuid: "{IBAN}"')


class Open(Command[None]):
    iban: str

    @field_validator("iban")
    @classmethod
    def check(cls, value: str) -> str:
        raise ValueError(f"{value} is no IBAN")


def command() -> None:
    Open(iban=IBAN)


def failing(function: Callable[[], None]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (validation, "ValidationError (value_error at iban; int_parsing at by.*) at test_disclosure.validation:"),
        (plain, "ValueError at test_disclosure.plain:"),
        (chained, "KeyError at test_disclosure.chained:"),
        (driver, "InvalidTextRepresentation 22P02 at test_disclosure.driver:"),
        (command, "InvalidCommand: invalid iban"),
    ],
)
def test_an_exception_is_told_by_class_codes_and_place(function: Callable[[], None], says: str) -> None:
    error = failing(function)
    assert safe_text(error).replace("tests.unit.", "").startswith(says)
    assert IBAN not in safe_text(error) + trace(error)
    assert IBAN in words(error) or function in (chained, validation)


class Answered(Exception):
    """As the exceptions of HTTP clients are."""

    def __init__(self, **attributes: object) -> None:
        super().__init__(IBAN)
        vars(self).update(attributes)


def missing_key() -> None:
    {}["title"]


def said_of_the_data() -> None:
    raise KeyError("title")


def key_of_the_data() -> None:
    {}["".join(["ti", "tle"])]


def no_attribute() -> None:
    IBAN.title_of()  # type: ignore[attr-defined]


def no_file() -> None:
    Path("/nowhere/at/all").read_text()


def in_a_group() -> None:
    raise ExceptionGroup(IBAN, [failing(missing_key), failing(plain)])


def one_row_of_none() -> None:
    """SQLAlchemy raises it in compiled code."""
    with create_engine("sqlite://").connect() as connection:
        connection.execute(text("SELECT 1 WHERE false")).scalar_one()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (missing_key, "KeyError (title) at {}.missing_key:"),
        (key_of_the_data, "KeyError at {}.key_of_the_data:"),
        (said_of_the_data, "KeyError at {}.said_of_the_data:"),
        (no_attribute, "AttributeError (title_of) at {}.no_attribute:"),
        (no_file, "FileNotFoundError (ENOENT) at {}.no_file:"),
        (in_a_group, "ExceptionGroup (KeyError (title) at {}.missing_key:"),
        (one_row_of_none, "NoResultFound at {}.one_row_of_none:"),
        (
            lambda: raised(urllib.error.HTTPError(IBAN, 404, IBAN, Message(), None)),
            "HTTPError (404) at {}.raised:",
        ),
        (lambda: raised(Answered(status=503)), "Answered (503) at {}.raised:"),
        (lambda: raised(Answered(response=SimpleNamespace(status_code=422))), "Answered (422) at {}.raised:"),
        (lambda: raised(Answered(code=89_370_400)), "Answered at {}.raised:"),
        (lambda: raised(Answered(code=IBAN, status=True)), "Answered at {}.raised:"),
        (lambda: raised(SystemExit(3)), "SystemExit (3) at {}.raised:"),
        (lambda: raised(subprocess.CalledProcessError(127, IBAN)), "CalledProcessError (127) at {}.raised:"),
    ],
)
def test_an_exception_keeps_its_core_and_no_data(function: Callable[[], None], says: str) -> None:
    error = failing(function)
    assert safe_text(error).startswith(says.format(__name__))
    assert code_of(safe_text(error)) == f"raised_{type(error).__name__}"
    assert IBAN not in with_stack(error) + trace(error)


def raised(error: BaseException) -> None:
    raise error


def test_the_place_in_an_application_that_is_installed_like_a_library_is_its_own(tmp_path: Path) -> None:
    """The first package that we call is the application; the libraries that it calls are not."""
    installed = tmp_path / "site-packages"
    sources = {
        "installed_shop": "import installed_lib\n\ndef handle():\n    installed_lib.fail()\n",
        "installed_lib": "def fail():\n    1 / 0\n",
    }
    for name, source in sources.items():
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text(source)
    with patch.object(sys, "path", [str(installed), *sys.path]):
        shop = importlib.import_module("installed_shop")
    error = failing(shop.handle)
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without the line of this test, which is an application
    assert safe_text(error) == "ZeroDivisionError at installed_shop.handle:4"


def test_what_is_raised_for_operators_is_told_in_its_words() -> None:
    poison = Poison("no title")
    assert safe_text(poison) == "Poison: no title"
    assert words(poison) == ""
    assert safe_text(InvalidCommand("x")) == "InvalidCommand: invalid"


@given(st.text(max_size=2_000))
def test_what_is_printable_is_one_bounded_line_of_text_that_postgresql_stores(text: str) -> None:
    line = printable(text)
    assert line.isprintable()
    assert len(line.encode()) <= 500


@given(st.recursive(st.none() | st.just(IBAN) | st.integers(10**9, 10**18), lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["detail", "type", "loc", "msg", "code", "error", "error_code", "x"]), inner)
)))  # fmt: skip
def test_no_answer_makes_us_repeat_a_value(answer: object) -> None:
    found = answered(json.dumps(answer).encode())
    assert "DE89" not in found
    assert not any(part.isdecimal() and len(part) > 5 for part in found.replace(".", " ").split())


# --- log lines ---


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], io.StringIO]:
    root, level, handlers = logging.getLogger(), logging.getLogger().level, logging.getLogger().handlers[:]

    def begin(log_format: str) -> io.StringIO:
        configure("DEBUG", log_format)
        stream = io.StringIO()
        handler = root.handlers[0]
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
        return stream

    yield begin
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize(
    "name", ["relay", "relay.tasks", "dramatiq.worker.WorkerThread", "apscheduler", "asyncio"]
)
def test_a_traceback_in_the_log_names_lines_and_repeats_no_value(
    lines: Callable[[str], io.StringIO], log_format: str, name: str
) -> None:
    stream = lines(log_format)
    error = failing(chained)
    logging.getLogger(name).error(
        "it failed\nfuture: exception=%r", error, exc_info=error
    ) if name == "asyncio" else (logging.getLogger(name).error("it failed", exc_info=error))
    found = stream.getvalue()
    assert IBAN not in found
    assert "it failed" in found
    assert "KeyError at" in found
    assert "ValueError at" in found
    assert ("in chained" if log_format == "console" else '"name": "chained"') in found


def test_a_structlog_line_of_ours_is_no_different(lines: Callable[[str], io.StringIO]) -> None:
    stream = lines("json")
    try:
        chained()
    except KeyError:
        structlog.stdlib.get_logger("relay").exception("it failed")
    [line] = map(json.loads, stream.getvalue().splitlines())
    assert [one["exc_type"] for one in line["exception"]] == ["KeyError", "ValueError"]
    assert line["exception"][0]["exc_value"].startswith("KeyError at ")
    frame = line["exception"][1]["frames"][-1]
    assert (frame["filename"], frame["name"], frame["lineno"] > 0) == (__file__, "plain", True)
    assert IBAN not in stream.getvalue()


def test_an_import_that_fails_is_located(lines: Callable[[str], io.StringIO], tmp_path: Path) -> None:
    """As dramatiq logs it when a worker loads a module of handlers."""
    stream = lines("json")
    (tmp_path / "broken_handlers.py").write_text("def load():\n    import nowhere_at_all\nload()\n")
    with pytest.raises(ImportError) as failed, patch.object(sys, "path", [str(tmp_path), *sys.path]):
        importlib.import_module("broken_handlers")
    logging.getLogger("dramatiq.WorkerProcess(0)").error("Failed to import module.", exc_info=failed.value)
    [line] = map(json.loads, stream.getvalue().splitlines())
    [error] = line["exception"]
    assert error["exc_value"] == "ModuleNotFoundError (nowhere_at_all) at broken_handlers.load:2"
    places = [(Path(it["filename"]).name, it["lineno"], it["name"]) for it in error["frames"]]
    assert places[-2:] == [("broken_handlers.py", 3, "<module>"), ("broken_handlers.py", 2, "load")]


# --- the stack on a row ---


def test_a_reason_names_the_lines_that_led_to_it_and_repeats_no_value() -> None:
    error = failing(chained)
    reason, stack = stack_of(with_stack(error))
    assert reason == safe_text(error)
    here = Path(__file__).name
    shown = [re.sub("[0-9]+", "N", line.rpartition("/")[2]) for line in stack]
    assert shown == [
        f"{here}:N in chained",
        f"{here}:N in failing",
        "caused by ValueError",
        f"{here}:N in plain",
        f"{here}:N in chained",
    ]
    assert IBAN not in with_stack(error)


def test_a_stack_is_bounded() -> None:
    def deeper(level: int) -> None:
        deeper(level - 1) if level else plain()

    text = with_stack(failing(lambda: deeper(200)))
    assert len(stack_of(text)[1]) == 8
    assert len(text) < 1_500


def test_a_text_that_is_asked_for_stands_before_the_stack() -> None:
    result = answer(failing(plain)).in_full()
    reason, stack = stack_of(result.detail)
    assert reason.endswith(f": {IBAN}")
    assert stack


def failed_task() -> TaskFailed:
    error, id = with_stack(failing(plain)), uuid4()
    return TaskFailed(
        context="sea", task_id=id, task_type="mail", correlation_id=id, causation_id=id, attempts=1, error=error
    )


def test_a_line_about_a_failure_has_its_stack_below_it_on_a_terminal(lines: Callable[[str], io.StringIO]) -> None:
    stream = lines("console")
    LogFacts()(failed_task())
    line, *below = stream.getvalue().splitlines()
    assert "TaskFailed" in line
    assert "ValueError at " in line
    assert re.match("    .*test_disclosure.py:[0-9]+ in plain$", below[0])


def test_a_line_about_a_failure_has_its_stack_apart(lines: Callable[[str], io.StringIO]) -> None:
    stream = lines("json")
    LogFacts()(failed_task())
    [line] = map(json.loads, stream.getvalue().splitlines())
    assert line["error"].startswith("ValueError at ")
    assert "test_disclosure.py" in line["stack"][0]


def test_what_an_application_logs_itself_is_its_own_affair(lines: Callable[[str], io.StringIO]) -> None:
    stream = lines("json")
    logging.getLogger("myapp").error("it failed", exc_info=failing(plain))
    assert IBAN in stream.getvalue()


def test_the_arguments_of_an_applications_actors_are_not_logged(lines: Callable[[str], io.StringIO]) -> None:
    import dramatiq

    stream = lines("json")
    message = dramatiq.Message("default", "send_mail", (IBAN,), {"iban": IBAN}, {})
    logger = logging.getLogger("dramatiq.worker.WorkerThread")
    logger.error("Failed to process message %s with unhandled exception.", message)
    logger.warning("Retries exceeded for message %r.", message)
    assert IBAN not in stream.getvalue()
    assert stream.getvalue().count(f"send_mail({message.message_id})") == 2
