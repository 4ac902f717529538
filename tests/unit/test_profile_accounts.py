"""The accounts of a played profile: every way in which they may not balance is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relay.cli.demo.accounts import Counts
from relay.cli.demo.profiles import Production, ProfileBooks, audit, find
from relay.domain.errors import ConfigurationError

COUNTS = Counts(committed=2, published=2, received=2, handled=2, retried=0, dead_lettered=0)
BOOKS = ProfileBooks(
    production=Production(["evt_1", "evt_2"], ["evt_3"]),
    counts=COUNTS,
    stored=2,
    effects=["evt_1", "evt_2"],
    unacknowledged=0,
)


def test_accounts_that_balance_have_no_faults() -> None:
    assert list(audit(BOOKS)) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"effects": ["evt_1"]}, "1 committed, but without an effect: evt_2"),
        ({"effects": ["evt_1", "evt_2", "evt_3"]}, "1 rolled back, but with an effect: evt_3"),
        ({"effects": ["evt_1", "evt_2", "x"]}, "1 with an effect, but never committed: x"),
        ({"effects": ["evt_1", "evt_2", "evt_2"]}, "1 with a second effect: evt_2"),
        ({"counts": replace(COUNTS, published=1)}, "2 committed, but 1 published"),
        ({"counts": replace(COUNTS, received=3)}, "2 committed, but 3 in the inbox"),
        ({"counts": replace(COUNTS, handled=1)}, "2 committed, but 1 handled"),
        ({"stored": 3}, "2 committed, but 3 in the streams"),
        ({"unacknowledged": 1}, "1 messages that are not acknowledged in JetStream"),
    ],
)
def test_each_fault_is_named(changed: dict[str, Any], said: str) -> None:
    assert list(audit(replace(BOOKS, **changed))) == [said]


@pytest.mark.parametrize("name", ["nothing", "", "..", "cloudevents/..", "/"])
def test_a_profile_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"there are: .*cloudevents"):
        find(name)
