"""Promise 16: what rude neighbours do to others is found, and laid at nobody else's door."""

from __future__ import annotations

from uuid import UUID

import pytest

from chaos.calls import Span
from chaos.evidence import Evidence
from chaos.history import Fault, Source
from chaos.ledger import open_ledger
from chaos.neighbours import GENTLE, RAISING, others_unharmed
from tests.unit.chaos_support import BEGIN, busy

#: Of one exception, because the attempt and the number add up.
IDS = [str(UUID(int=4 * number)) for number in range(1, 6)]


def violations(evidence: Evidence, calls: list[Span]) -> tuple[str, ...]:
    return others_unharmed(evidence, open_ledger(evidence, 60), calls).violations


def tried_again(after: float, source: Source = Source.PYTHON, first: str = "error") -> list[Span]:
    """Each message is called twice."""
    spans = [(first, BEGIN + 20), ("ok", BEGIN + 20 + after)]
    return sorted(
        (Span(id, source, answer, at, at) for id in IDS for answer, at in spans), key=lambda span: span.began
    )


def raising(*others: Fault) -> Evidence:
    return Evidence(faults=[Fault(1, RAISING, "handlers", BEGIN, BEGIN + 60), *others])


def test_an_exception_that_only_the_lease_ends_is_found() -> None:
    [found] = violations(raising(), tried_again(8.0))
    assert found == "none of 5 calls that raised SystemExit was tried again within 8.0 s"


@pytest.mark.parametrize(
    ("evidence", "calls"),
    [
        (raising(), tried_again(1.0)),
        (raising(), [*tried_again(8.0)[:4], *tried_again(1.0)]),  # one of them is enough
        (raising(), tried_again(8.0, Source.HTTP)),
        (raising(), tried_again(8.0, first="hang")),
        (raising(Fault(2, "worker-kill", "worker-1", BEGIN + 15, BEGIN + 16)), tried_again(8.0)),
        (Evidence(faults=[Fault(1, "leftovers", "handlers", BEGIN, BEGIN + 60)]), tried_again(8.0)),
    ],
)
def test_what_was_tried_again_or_has_another_cause_is_not(evidence: Evidence, calls: list[Span]) -> None:
    calls = sorted(calls, key=lambda span: span.began)
    assert violations(evidence, calls) == ()


@pytest.mark.parametrize("kind", sorted(GENTLE))
@pytest.mark.parametrize(
    ("seconds", "other", "found"),
    [(12, None, True), (8, None, False), (12, BEGIN + 25, False), (12, BEGIN + 34, False), (12, BEGIN + 5, True)],
)
def test_a_side_that_stands_still_beside_a_gentle_fault_is_found(
    kind: str, seconds: int, other: float | None, found: bool
) -> None:
    """Unless another fault was there, or shortly before."""
    samples = busy(BEGIN, 30)
    samples += [type(it)(it.at + 30, 900, 300, 300, 600, 600) for it in busy(BEGIN, seconds)]
    samples += busy(BEGIN + 30 + seconds, 30)
    faults = [Fault(1, kind, "x", BEGIN + 29, BEGIN + 29 + seconds)]
    faults += [] if other is None else [Fault(2, "nats-kill", "nats", other, other + 1)]
    said = violations(Evidence(faults=faults, samples=samples), [])
    assert [f"during fault 1 ({kind})" in it for it in said] == [True, True][: 2 * found]
