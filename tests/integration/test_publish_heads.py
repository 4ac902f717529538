"""What goes and what waits where many keys have a failed event: what lies behind it in its own key waits."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from tests.integration.publishing import ALL, Relay, event, outbox_rows, query
from tests.integration.test_publish_path import check_ledger

pytestmark = pytest.mark.anyio

KEYS, EVENTS = 400, 2_000
#: How a head may stand: its columns, and whether it holds its key back where dead heads do not and where they do.
STATES = {
    "retried": ("publish_attempts = 1, available_at = now() + interval '1 hour'", {False: True, True: True}),
    "dead": ("publish_attempts = 3, dead_at = now()", {False: False, True: True}),
    "replayed": (
        "publish_attempts = 1, generation = 1, available_at = now() + interval '1 hour'",
        {False: False, True: False},
    ),
}


def fail_some(relay: Relay, chance: random.Random) -> dict[Any, str]:
    """Have many events of most keys fail, and few of the others; returns how each stands."""
    failed = {}
    for row in outbox_rows(relay.url):
        if chance.random() < (0.3 if int(row["aggregate_id"][1:]) % 4 else 0.02):
            failed[row["id"]] = chance.choice([*STATES])
    for state, (columns, _) in STATES.items():
        ids = [id for id, it in failed.items() if it == state]
        query(relay.url, f"UPDATE outbox_events SET {columns} WHERE id = ANY (%s)", ids)
    return failed


@pytest.mark.parametrize("dead_head_blocks", [False, True])
async def test_what_lies_behind_a_failed_event_waits_and_all_else_goes(
    relay: Relay, dead_head_blocks: bool
) -> None:
    chance = random.Random(7)
    await relay.create_stream()
    relay.add(*[event(f"v{chance.randrange(KEYS)}", payload={"n": n}) for n in range(EVENTS)])
    failed = fail_some(relay, chance)
    heads, goes = defaultdict(int), set()
    for row in outbox_rows(relay.url):
        state = failed.get(row["id"])
        if state is None and not heads[row["partition_key"]]:
            goes.add(str(row["id"]))
        elif state is not None:
            heads[row["partition_key"]] += STATES[state][1][dead_head_blocks]
    command = relay.command(dead_head_blocks=dead_head_blocks)
    assert await command.drain(ALL) == len(goes)
    assert set(await relay.ids()) == goes


async def test_when_the_head_has_gone_its_followers_do_in_order(relay: Relay) -> None:
    await relay.create_stream()
    [head, *_] = relay.add(*[event("v1", payload={"n": n}) for n in range(20)])
    query(relay.url, f"UPDATE outbox_events SET {STATES['retried'][0]} WHERE id = %s", head)
    assert await relay.command().drain(ALL) == 0
    query(relay.url, "UPDATE outbox_events SET available_at = now() WHERE id = %s", head)
    await relay.drained()
    check_ledger(relay, await relay.ids())


async def test_what_an_operator_sets_back_by_hand_goes_again_and_the_rest_after_it(relay: Relay) -> None:
    """It has attempts behind it and waits for nothing: a head that may go."""
    await relay.create_stream()
    relay.add(*[event(f"v{n % 3}", payload={"n": n}) for n in range(12)])
    await relay.drained()
    query(relay.url, "UPDATE outbox_events SET published_at = NULL")
    relay.add(*[event(f"v{n % 3}", payload={"n": n}) for n in range(12, 24)])
    await relay.drained()
    assert [row["publish_attempts"] for row in outbox_rows(relay.url)] == [2] * 12 + [1] * 12
    check_ledger(relay, await relay.ids())
