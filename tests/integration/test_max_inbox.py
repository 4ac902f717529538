"""Pulls pause while the inbox of a subscription holds `max_inbox` unfinished messages, and go on by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from consumer.pull import PullMessages
from relay.devstack import NatsServer
from relay.domain.facts import PullsPaused, PullsResumed
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, subscribed
from tests.integration.publishing import open_backlog_reader, query

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        subscription.settle = "inbox"
        subscription.pull_times = replace(subscription.pull_times, rest=0.0)
        yield subscription


async def slice_of(pull: PullMessages, looks: int = 20) -> int:
    """A job of a few looks; returns how many of them it did not need."""
    left = iter(range(looks))
    await pull.run(lambda: next(left, None) is not None)
    return len(list(left))


def told(sub: Subscription) -> list[type]:
    return [type(fact) for fact in sub.facts if isinstance(fact, PullsPaused | PullsResumed)]


async def test_a_full_inbox_ends_the_job_and_what_was_handled_makes_room(sub: Subscription) -> None:
    """What is in back-off is unfinished, too: a handler that is down must not fill the table."""
    for _ in range(8):
        await sub.send()
    pull = sub.pull(batch_size=1, max_inbox=5)
    assert await slice_of(pull) > 0  # it ends by itself: no worker waits
    assert len(await sub.rows()) == 5
    for message_id in sub.enqueued[:5]:
        await sub.process(Handler.answering(503)).process(message_id)
    await slice_of(pull)
    assert (len(await sub.rows()), told(sub)) == (5, [PullsPaused])
    query(sub.url, "UPDATE inbox_messages SET processed_at = now() WHERE message_id = %s", sub.enqueued[0])
    await slice_of(pull)
    assert (len(await sub.rows()), told(sub)) == (5, [PullsPaused])  # four of five are 80 %
    query(sub.url, "UPDATE inbox_messages SET processed_at = now() WHERE message_id = %s", sub.enqueued[1])
    await slice_of(pull)
    assert (len(await sub.rows()), told(sub)) == (7, [PullsPaused, PullsResumed, PullsPaused])


async def test_the_inbox_is_counted_again_only_when_its_room_is_used_up(sub: Subscription) -> None:
    for _ in range(6):
        await sub.send()
    pull, counts = sub.pull(batch_size=1, max_inbox=5), []
    due = sub.inbox.due

    async def counted(subscription: str, limit: int, *, later: bool = False) -> int:
        found = await due(subscription, limit, later=later)
        if later:
            counts.append(found)
        return found

    sub.inbox.due = counted  # type: ignore[method-assign]
    await slice_of(pull)
    assert counts == [0, 5]


async def test_what_another_process_has_pulled_since_counts(sub: Subscription) -> None:
    pull = sub.pull(batch_size=1, max_inbox=2)
    await slice_of(pull, looks=1)
    for _ in range(3):
        await sub.send()
    await slice_of(sub.pull(batch_size=1), looks=2)
    await slice_of(pull)
    assert len(await sub.rows()) == 2


async def test_after_a_count_that_found_it_full_it_rests(sub: Subscription) -> None:
    sub.pull_times = replace(sub.pull_times, rest=1e9)
    for _ in range(2):
        await sub.send()
    pull = sub.pull(batch_size=1, max_inbox=1)
    await slice_of(pull)
    query(sub.url, "UPDATE inbox_messages SET processed_at = now()")
    await slice_of(pull)
    assert len(await sub.rows()) == 1


async def test_parked_messages_do_not_count_and_operators_see_what_does(sub: Subscription) -> None:
    for _ in range(5):
        await sub.send()
    await slice_of(sub.pull(batch_size=1, max_inbox=4))
    async with open_backlog_reader(sub.url) as reader:
        [found] = await reader.full_inboxes({SUBSCRIPTION: 4, "another": 1})
        assert (found.subscription, found.unfinished, found.max_inbox) == (SUBSCRIPTION, 4, 4)
        query(sub.url, "UPDATE inbox_messages SET enqueued_at = 'infinity' WHERE message_id = %s", sub.enqueued[0])
        assert [it.unfinished for it in await reader.full_inboxes({SUBSCRIPTION: 3})] == [3]
        assert await reader.full_inboxes({SUBSCRIPTION: 4}) == []
