"""What a handler answers to each call about an event: a pure function of the event's id and the run's seed.

Producers, handlers and the checker each compute it. So the event need not carry it, and no fault can change it.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final
from uuid import UUID

from chaos.history import Plan

#: How many of a thousand events get which plan.
WEIGHTS: Final[dict[Plan, int]] = {
    Plan.ACCEPT: 900,
    Plan.REPEAT: 20,
    Plan.POISON: 20,
    Plan.FLAKY: 40,
    Plan.HANG: 7,
    Plan.DROP: 8,
    Plan.NEVER: 5,
}
_ACCEPTED: Final = {Plan.ACCEPT, Plan.FLAKY, Plan.HANG, Plan.DROP}
_MOST_FAILURES: Final = 3
#: For the slow subscription: one call in so many is slow, and its seconds, which are longer than a lease.
_SLOW_ONE_IN: Final = 5
_SLOW_SECONDS: Final = (9, 13)


class Answer(StrEnum):
    """What a handler does with one call, as `history.Call` records it.

    A service and a Python handler do the same where they can. Whatever the answer, the effect is written first:
    only its transaction decides whether it stays.
    """

    OK = "ok"
    REPEAT = "repeat"
    """409, or AlreadyProcessed: rolled back."""
    POISON = "poison"
    """422, or Poison: rolled back."""
    ERROR = "error"
    """503, or any exception: rolled back."""
    HANG = "hang"
    """No answer until the caller has given up. A Python function then returns as if nothing were wrong."""
    DROP = "drop"
    """A service commits and drops the connection. A Python handler has no such moment: it raises, rolled back."""


_ALWAYS: Final = {
    Plan.ACCEPT: Answer.OK,
    Plan.REPEAT: Answer.REPEAT,
    Plan.POISON: Answer.POISON,
    Plan.NEVER: Answer.ERROR,
}
_FIRST_ONLY: Final = {Plan.HANG: Answer.HANG, Plan.DROP: Answer.DROP}


def plan_of(message_id: UUID | str, seed: int) -> Plan:
    """The plan of an event."""
    rest = _hash(message_id, seed, "plan") % sum(WEIGHTS.values())
    for plan, weight in WEIGHTS.items():
        if rest < weight:
            return plan
        rest -= weight
    raise AssertionError("the weights cover every remainder")


def failures_of(message_id: UUID | str, seed: int) -> int:
    """How many calls about a FLAKY event fail, 1 to 3, before one succeeds."""
    return 1 + _hash(message_id, seed, "failures") % _MOST_FAILURES


def answer_to(message_id: UUID | str, seed: int, call: int) -> Answer:
    """The answer to the ``call``-th call, from 1, about an event."""
    plan = plan_of(message_id, seed)
    if plan is Plan.FLAKY:
        return Answer.ERROR if call <= failures_of(message_id, seed) else Answer.OK
    if plan in _FIRST_ONLY:
        return _FIRST_ONLY[plan] if call == 1 else Answer.OK
    return _ALWAYS[plan]


def effects_of(plan: Plan) -> int:
    """Return how many effects an event of this plan must have in the end."""
    return int(plan in _ACCEPTED)


def slowness_of(message_id: UUID | str, seed: int) -> float:
    """For how many seconds the slow handler works on an event.

    An event that always fails is not slow: its twenty attempts alone would keep a run from ending for minutes.
    """
    if _hash(message_id, seed, "slow") % _SLOW_ONE_IN or plan_of(message_id, seed) is Plan.NEVER:
        return 0.0
    least, most = _SLOW_SECONDS
    return float(least + _hash(message_id, seed, "slowness") % (most - least + 1))


def _hash(message_id: UUID | str, seed: int, purpose: str) -> int:
    """The same number in every process, which ``hash()`` would not be."""
    text = f"{purpose}/{seed}/{UUID(str(message_id))}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
