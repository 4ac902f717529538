"""What `relay chaos` makes of its options."""

from __future__ import annotations

import pytest

from relay.chaos.faults import FAULTS
from relay.cli.chaos import _kinds
from relay.domain.errors import InvalidRequest


def test_all_kinds_are_meant_unless_some_are_named() -> None:
    assert _kinds(None, None) is None
    assert _kinds([], []) is None


def test_kinds_are_chosen_or_left_out() -> None:
    assert _kinds(["nats-kill", "worker-kill"], None) == ["worker-kill", "nats-kill"]
    assert _kinds(["nats-kill", "worker-kill"], ["nats-kill"]) == ["worker-kill"]
    assert _kinds(None, ["worker-kill"]) == [name for name in FAULTS if name != "worker-kill"]


@pytest.mark.parametrize("option", [(["worker-hug"], None), (None, ["worker-hug"])])
def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are(
    option: tuple[list[str] | None, ...],
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _kinds(*option)
    assert "worker-kill" in (refused.value.hint or "")
