"""How the sample handler answers."""

from __future__ import annotations

import pytest

from relay.devstack.sample import HANGS, decide


@pytest.mark.parametrize(
    ("payload", "answers"),
    [
        ({"verdict": "ok"}, [200, 200]),
        ({}, [200]),
        ({"verdict": "unheard of"}, [200]),
        ("no object", [200]),
        (None, [200]),
        ({"verdict": "already"}, [409, 409]),
        ({"verdict": "poison"}, [422, 422]),
        ({"verdict": "flaky"}, [503, 503, 200]),
        ({"verdict": "slow"}, [HANGS, 200]),
    ],
)
def test_the_verdict_in_the_payload_decides(payload: object, answers: list[int]) -> None:
    assert [decide(payload, call) for call in range(1, len(answers) + 1)] == answers
