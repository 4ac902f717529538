"""Codes of reasons: read from their texts, also from those of older releases."""

from __future__ import annotations

from importlib import import_module

import pytest
import typer

from relay.domain.errors import DomainError, InvalidSubject, MalformedMessage, Poison
from relay.domain.model import HandlerResult
from relay.domain.policies import EXPIRED, NoStream, unanswered
from relay.domain.reasons import CODES, FAMILIES, OTHER, code_of, reason_filter
from relay.execution.calls import answer, timed_out

_HOST = "Cannot connect to host sr:80 ssl:default"


def raised(error: BaseException) -> str:
    return answer(error).detail


EXAMPLES = [
    ("timeout", timed_out(30).detail),
    ("connect_timeout", "time-out: no connection within 5 s"),
    ("connection_refused", f"ConnectError: {_HOST} [Connect call failed ('10.0.0.1', 80)]"),
    ("connection_refused", f"ConnectError: Connection refused: {_HOST} [Connect call failed ('10.0.0.1', 80)]"),
    ("unreachable", f"ConnectError: No route to host: {_HOST} [Connect call failed ('10.0.0.1', 80)]"),
    ("unknown_host", f"ConnectError: {_HOST} [Name or service not known]"),
    ("unknown_host", f"ConnectError: {_HOST} [Temporary failure in name resolution]"),
    ("tls", f"ConnectError: {_HOST} [SSLCertVerificationError: (1, '[SSL: CERTIFICATE_VERIFY_FAILED] …')]"),
    ("connection_lost", "ServerDisconnectedError: the connection was closed before an answer"),
    ("connection_lost", "ConnectionResetError: Connection reset by peer"),
    ("no_http", "ProtocolError: what came is no HTTP"),
    ("no_handler", "no handler for account_unknown v1: tests handles nothing"),
    ("does_not_fit", "Poison: vibe_created v1 does not fit its handler: string_type at payload.title"),
    ("does_not_fit", "does not fit its handler: missing at payload.n"),
    ("raised_Poison", raised(Poison("no title"))),
    ("unconfirmed", "unconfirmed: the message has not died; the letter says: HTTP 503"),
    ("unreadable", raised(MalformedMessage("nests too deep"))),
    ("worker_died", unanswered(20).reason),
    ("unreadable", str(MalformedMessage("the body is not JSON", field="body"))),
    ("unreadable", "the dead letter itself cannot be read: KeyError"),
    ("stream_missing", NoStream.missing("a.b").error),
    ("stream_mismatch", NoStream.mismatch("a.b", "S").error),
    ("too_large", "over the server's limit of 1048576 bytes"),
    ("too_large", "message size exceeds maximum allowed (10054)"),
    ("invalid_event", str(InvalidSubject("holds a space", field="topic"))),
    ("not_permitted", "NATS lets this user not publish to a.b; grant it: publish a.b"),
    ("cancelled", "CANCELLED: its producer took it back"),
    ("expired", EXPIRED),
    ("row_refused", "S has it as 3, but its row cannot be settled: UniqueViolation 23505"),
    ("status_503", "HTTP 503: busy"),
    ("status_422", HandlerResult.from_status(422).detail),
    ("raised_KeyError", raised(KeyError("DE02"))),
    ("raised_KeyError", "KeyError at app.handlers.handle:12"),
    ("raised_UniqueViolation", "UniqueViolation 23505 (uq_number) at app.handlers.handle:12"),
    ("raised_ValidationError", "ValidationError (missing at title) at app.handlers.handle:12"),
    ("raised_DomainError", raised(DomainError("no such account"))),
    (OTHER, "insufficient funds"),
    (OTHER, "refused: insufficient funds"),
]
BEFORE = ("", "exhausted: 20 attempts, the last one: ", "unrecoverable: ")


@pytest.mark.parametrize(("code", "reason"), EXAMPLES)
def test_a_reason_has_a_code_and_is_found_by_it_and_by_no_other(code: str, reason: str) -> None:
    names = [*(known.name for known in CODES), *{code for code, _ in EXAMPLES}, *FAMILIES]
    for before in BEFORE[: 1 if code == "worker_died" else 3]:
        assert code_of(before + reason) == code
        fitting = {name for name in names if reason_filter(name).fits(before + reason)}
        assert fitting == {code}


def test_each_code_has_an_example() -> None:
    assert {code.name for code in CODES} <= {code for code, _ in EXAMPLES}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("connection refused", f"ConnectError: {_HOST} [Connect call failed ('10.0.0.1', 80)]"),
        ("Connection-Refused", f"ConnectError: {_HOST} [Connect call failed ('10.0.0.1', 80)]"),
        ("time-out", "exhausted: 20 attempts, the last one: time-out: no answer within 30 s"),
        ("NO SUCH (account", "no such (account)"),
    ],
)
def test_an_operator_may_write_a_code_as_words_or_a_part_of_the_text(asked: str, found: str) -> None:
    assert reason_filter(asked).fits(found)
    assert not reason_filter(asked).fits("HTTP 500")


def test_no_reason_has_no_code() -> None:
    assert (code_of(None), code_of(""), reason_filter(None).pattern) == ("", "", None)


@pytest.mark.parametrize(("command", "name"), [("dlq", "reason"), ("outbox", "error"), ("tasks", "error")])
def test_a_filter_completes_codes(command: str, name: str) -> None:
    lists = typer.main.get_command(import_module(f"relay.cli.{command}").app).commands["list"]  # type: ignore[attr-defined]
    option = next(param for param in lists.params if param.name == name)
    assert [it.value for it in option.shell_complete(typer.Context(lists), "t")] == ["timeout", "tls", "too_large"]
