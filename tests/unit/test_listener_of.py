"""Which member listens to a context: all agree, the work is divided, and hardly any changes hands."""

from __future__ import annotations

from collections import Counter

from relay.domain.members import listener_of

MEMBERS = [f"{number:032x}" for number in range(7)]
CONTEXTS = [f"context{number}" for number in range(700)]


def test_nobody_listens_where_nobody_publishes() -> None:
    assert listener_of("sea", []) is None


def test_all_agree_in_whatever_order_they_know_each_other() -> None:
    assert {listener_of("sea", order) for order in (MEMBERS, MEMBERS[::-1], frozenset(MEMBERS))} == {
        listener_of("sea", MEMBERS)
    }


def test_contexts_are_divided_among_members() -> None:
    shares = Counter(listener_of(it, MEMBERS) for it in CONTEXTS)
    assert len(shares) == len(MEMBERS)
    assert max(shares.values()) < 2 * len(CONTEXTS) / len(MEMBERS)


def test_who_goes_leaves_its_contexts_to_others_and_those_keep_theirs() -> None:
    before = {it: listener_of(it, MEMBERS) for it in CONTEXTS}
    after = {it: listener_of(it, MEMBERS[1:]) for it in CONTEXTS}
    assert {it for it in CONTEXTS if before[it] != after[it]} == {
        it for it in CONTEXTS if before[it] == MEMBERS[0]
    }
