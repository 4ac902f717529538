"""The cases of the handler contract (SDS-047 §12), for a running handler in any language.

Each case sends one or a few requests and checks the statuses. Good requests take effect, so use this with a
test deployment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

from relay.domain.disclosure import clean
from relay.domain.model import DONE

#: The pauses between the repeats of an abandoned call, in seconds. After the last repeat it counts as failed.
_PAUSES_S: Final = (0.02, 0.05, 0.1, 0.2, *[0.4] * 12)


class SignatureKind(Enum):
    """How a request is signed, if a secret is known."""

    GOOD = "good"
    WRONG = "wrong"
    MISSING = "missing"
    OLD = "old"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer: a status, or None with the reason in ``detail``."""

    status: int | None
    detail: str = ""

    @property
    def done(self) -> bool:
        """Whether the relay would read the answer as "done"."""
        return self.status in DONE

    def __str__(self) -> str:
        detail = clean(self.detail, 200)
        if self.status is None:
            return detail
        return f"{self.status} {detail}".rstrip() if self.status >= 400 else str(self.status)


class HandlerProbe(Protocol):
    """Calls one handler as the relay does."""

    async def reach(self) -> None:
        """Connect, and hang up again. Raises HandlerUnreachable."""

    async def send(self, message_id: UUID, body: bytes, signature: SignatureKind = SignatureKind.GOOD) -> Answer:
        """Send a request and wait for the answer as long as the relay would. Never raises."""

    async def give_up(self, message_id: UUID, body: bytes) -> None:
        """Send a complete request and close the connection without waiting for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMessage:
    """A message that the handler accepts: its type and a valid payload.

    ``bad_payload`` is an invalid payload. The default is a JSON value of another type.
    """

    event_type: str = "relay_check"
    event_version: int = 1
    payload: Any = field(default_factory=dict)
    bad_payload: Any = None

    def body(self, message_id: UUID, /, **fields: Any) -> bytes:
        """The request. ``fields`` replace its fields; a field with the value ``...`` is left out."""
        subject = f"check.event.{self.event_type}.v{self.event_version}"
        request = {
            "message_id": str(message_id),
            "subject": subject,
            "event_type": self.event_type,
            "event_version": self.event_version,
            "occurred_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "correlation_id": str(uuid4()),
            "causation_id": str(uuid4()),
            "payload": self.payload,
        }
        return json.dumps({key: value for key, value in (request | fields).items() if value is not ...}).encode()

    @property
    def wrong(self) -> Any:
        """A payload that the handler must refuse."""
        if self.bad_payload is not None:
            return self.bad_payload
        return ["relay handler check"] if not isinstance(self.payload, list) else "relay handler check"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case: whether the handler passed, the expected answer and the actual one.

    ``note``: what the case cannot see, and the operator should know.
    """

    case: str
    passed: bool
    expected: str
    answered: str
    note: str = ""


Run = Callable[[HandlerProbe, SampleMessage], Awaitable[tuple[bool, str]]]


@dataclass(frozen=True, slots=True)
class Case:
    """One rule of the contract. ``signed``: only if a secret is known."""

    name: str
    expected: str
    run: Run
    signed: bool = False


async def check_handler(probe: HandlerProbe, sample: SampleMessage, *, signed: bool) -> Sequence[CaseResult]:
    """Run every case against the handler, one after the other. Cases of signatures run only if ``signed``.

    Raises HandlerUnreachable, before the first case.
    """
    await probe.reach()
    outcomes = []
    for case in CASES:
        if signed or not case.signed:
            passed, answered = await case.run(probe, sample)
            outcomes.append(CaseResult(case.name, passed, case.expected, answered, _note(case, passed, answered)))
    return outcomes


def _note(case: Case, passed: bool, answered: str) -> str:
    again = case.name == "repeated" and passed and not answered.endswith("409")
    return "the handler does repeats again: this is right only if twice is the same as once" if again else ""


# --- the cases ---


def _once(accepted: Callable[[Answer], bool], **fields: Any) -> Run:
    """Send one request, in which ``fields`` differ, and look at its answer."""

    async def run(probe: HandlerProbe, sample: SampleMessage) -> tuple[bool, str]:
        message_id = uuid4()
        answer = await probe.send(message_id, sample.body(message_id, **fields))
        return accepted(answer), str(answer)

    return run


def _accepted(**fields: Any) -> Run:
    return _once(lambda answer: answer.done, **fields)


def _poison(**fields: Any) -> Run:
    return _once(lambda answer: answer.status == 422, **fields)


async def _repeated(probe: HandlerProbe, sample: SampleMessage) -> tuple[bool, str]:
    message_id = uuid4()
    body = sample.body(message_id)
    first, second = await probe.send(message_id, body), await probe.send(message_id, body)
    return first.done and _done_once(second), f"{first}, then {second}"


def _done_once(answer: Answer) -> bool:
    """Whether the answer to a repeat is good: done before, or done again if the handler may do the work twice."""
    return answer.done or answer.status == 409


async def _at_once(probe: HandlerProbe, sample: SampleMessage) -> tuple[bool, str]:
    message_id = uuid4()
    body = sample.body(message_id)
    answers = await asyncio.gather(*(probe.send(message_id, body) for _ in range(4)))
    last = await probe.send(message_id, body)
    others = [answer for answer in answers if not answer.done]
    fine = all(answer.status is not None and (answer.status == 409 or answer.status >= 500) for answer in others)
    # A handler that recognises messages (it answers 409 in the end) may do one. Another handler may do all.
    once = len(others) == 3 if last.status == 409 else len(others) < 4
    return once and fine and _done_once(last), f"{', '.join(map(str, answers))}, then {last}"


async def _given_up(probe: HandlerProbe, sample: SampleMessage) -> tuple[bool, str]:
    """A caller repeats its call after the time-out. A handler that still works may answer 5xx, but never 4xx."""
    message_id = uuid4()
    body = sample.body(message_id)
    await probe.give_up(message_id, body)
    answers = [await probe.send(message_id, body)]
    for pause in _PAUSES_S:
        if (answers[-1].status or 0) < 500:
            break
        await asyncio.sleep(pause)
        answers.append(await probe.send(message_id, body))
    return _done_once(answers[-1]), ", ".join(map(str, answers[-3:]))


async def _malformed(probe: HandlerProbe, sample: SampleMessage) -> tuple[bool, str]:
    message_id = uuid4()
    answer = await probe.send(message_id, sample.body(message_id)[:-1])
    return answer.status == 422, str(answer)


async def _wrong_payload(probe: HandlerProbe, sample: SampleMessage) -> tuple[bool, str]:
    return await _poison(payload=sample.wrong)(probe, sample)


def _signature(signature: SignatureKind) -> Run:
    async def run(probe: HandlerProbe, sample: SampleMessage) -> tuple[bool, str]:
        """Check that the request is refused and not recorded as done: with a good signature it takes effect."""
        message_id = uuid4()
        body = sample.body(message_id)
        refused, good = await probe.send(message_id, body, signature), await probe.send(message_id, body)
        return refused.status == 401 and good.done, f"{refused}, well signed {good}"

    return run


_NULLS: Final[Mapping[str, Any]] = {"occurred_at": None, "correlation_id": None, "causation_id": None}
_unknown_type: Final = _once(
    lambda answer: answer.done or answer.status in (409, 422), event_type="relay_check_unknown_event"
)
_REFUSED: Final = "401, and 200 when well signed"
CASES: Final[Sequence[Case]] = (
    Case("good", "200, 201 or 204 in time", _accepted()),
    Case("optional fields null", "200: events may lack time, correlation and causation", _accepted(**_NULLS)),
    Case("unknown field", "200: the contract may grow", _accepted(field_of_a_later_version=1)),
    Case("repeated", "200, then 409; or 200 again", _repeated),
    Case("four at once", "one 200, the others 409 or 5xx, then 409; or 200 each time", _at_once),
    Case("caller gives up", "200 or 409 when repeated, 5xx before that at most", _given_up),
    Case("malformed JSON", "422", _malformed),
    Case("missing message_id", "422", _poison(message_id=...)),
    Case("missing event_type", "422", _poison(event_type=...)),
    Case("missing payload", "422", _poison(payload=...)),
    Case("message_id is no text", "422", _poison(message_id=7)),
    Case("wrong payload", "422", _wrong_payload),
    Case("unknown event type", "422, or 200 if every event is taken", _unknown_type),
    Case("signature wrong", _REFUSED, _signature(SignatureKind.WRONG), signed=True),
    Case("signature missing", _REFUSED, _signature(SignatureKind.MISSING), signed=True),
    Case("signature old", _REFUSED, _signature(SignatureKind.OLD), signed=True),
)


def plain(outcomes: Sequence[CaseResult]) -> Mapping[str, Any]:
    """The report as values for JSON."""
    return {
        "passed": all(outcome.passed for outcome in outcomes),
        "cases": [asdict(outcome) for outcome in outcomes],
    }
