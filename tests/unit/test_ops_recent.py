"""Answers that are given again for a second: how many are kept, and until when."""

from __future__ import annotations

import asyncio

import pytest

from relay.bus import Command, CommandBus, Query, QueryBus
from relay.domain.errors import DatabaseUnreachable
from relay.ops.api.common import Ops, OpsLimits, Recent
from relay.settings import Settings

pytestmark = pytest.mark.anyio


class Look(Query[int]):
    number: int = 0


class Change(Command[None]):
    fails: bool


async def test_questions_that_fail_are_not_kept_for_ever() -> None:
    queries = QueryBus()

    @queries.handles(Look)
    async def fail(query: Look) -> int:
        raise DatabaseUnreachable("it does not answer")

    ops = Ops(Settings(), queries, CommandBus(), Recent(), OpsLimits())
    for number in range(1_000):
        with pytest.raises(DatabaseUnreachable):
            await ops.recent.ask(ops, Look(number=number))
    assert len(ops.recent._locks) <= 200


async def test_an_answer_that_nobody_gets_any_more_is_not_kept() -> None:
    queries = QueryBus()

    @queries.handles(Look)
    async def look(query: Look) -> int:
        return query.number

    ops = Ops(Settings(), queries, CommandBus(), Recent(fresh_s=-1.0), OpsLimits())
    assert [await ops.recent.ask(ops, Look(number=number)) for number in range(10)] == [*range(10)]
    assert len(ops.recent._known) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_asked_after_a_deed_is_looked_up_again(fails: bool) -> None:
    """Also if a question from before the deed is answered only after it."""
    queries, commands, looks = QueryBus(), CommandBus(), 0
    asked, answer = asyncio.Event(), asyncio.Event()

    @queries.handles(Look)
    async def look(query: Look) -> int:
        nonlocal looks
        looks += 1
        seen = looks
        asked.set()
        await answer.wait()
        return seen

    @commands.handles(Change)
    async def change(command: Change) -> None:
        if command.fails:
            raise DatabaseUnreachable("it went away half-way")

    ops = Ops(Settings(), queries, commands, Recent(), OpsLimits())
    before = asyncio.create_task(ops.recent.ask(ops, Look()))
    await asked.wait()
    if fails:
        with pytest.raises(DatabaseUnreachable):
            await ops.do(Change(fails=True))
    else:
        await ops.do(Change(fails=False))
    answer.set()
    assert await before == 1
    assert await ops.recent.ask(ops, Look()) == 2
    assert await ops.recent.ask(ops, Look()) == 2
