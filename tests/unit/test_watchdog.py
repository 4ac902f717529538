"""The claims of calls under way are renewed, on the loop as in threads, and calls end in time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from relay.domain.errors import DatabaseUnreachable, LeaseOver
from relay.execution.lease import Attended, TimeUp, Watchdog
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

#: Nothing of it ends in a test by itself. What is due was requested long before.
LEASE = timedelta(hours=1)
DUE, OVER = 901.0, 3149.0
Renew = Callable[[], Awaitable[bool]]


async def away() -> bool:
    raise DatabaseUnreachable("away")


async def lost() -> bool:
    return False


async def silent() -> bool:
    await asyncio.Event().wait()
    raise AssertionError


@dataclass
class Claim:
    """A claim that was requested ``ago`` seconds ago, and what its renewals answer."""

    ago: float = 0.0
    answer: Renew | None = None
    asked: list[float] = field(default_factory=list)

    async def renew(self) -> bool:
        self.asked.append(time.monotonic())
        return True if self.answer is None else await self.answer()

    @property
    def since(self) -> float:
        return time.monotonic() - self.ago


async def on_the_loop(claim: Claim, over: asyncio.Event) -> None:
    async with Watchdog().kept(LEASE, claim.since, claim.renew):
        await over.wait()


async def in_a_thread(claim: Claim, over: asyncio.Event) -> None:
    ends = threading.Event()
    attended = Attended(LEASE, claim.since, claim.renew)
    dog = Watchdog(asyncio.get_running_loop())
    call = asyncio.create_task(asyncio.to_thread(dog.call, lambda: ends.wait(60), attended))
    await over.wait()
    ends.set()
    await call


@pytest.fixture(params=[on_the_loop, in_a_thread])
def kept(request: pytest.FixtureRequest) -> Callable[[Claim, asyncio.Event], Awaitable[None]]:
    return request.param  # type: ignore[no-any-return]


async def test_a_claim_is_renewed_when_that_is_due_and_not_before(kept: Callable[..., Awaitable[None]]) -> None:
    fresh, due, over = Claim(), Claim(ago=DUE), asyncio.Event()
    calls = [asyncio.ensure_future(kept(claim, over)) for claim in (fresh, due)]
    await eventually("it is renewed", lambda: len(due.asked) == 1)
    over.set()
    await asyncio.gather(*calls)
    assert (len(fresh.asked), len(due.asked)) == (0, 1)


async def test_a_call_whose_claim_is_over_does_not_begin(kept: Callable[..., Awaitable[None]]) -> None:
    over = asyncio.Event()
    over.set()
    with pytest.raises(LeaseOver):
        await kept(Claim(ago=LEASE.total_seconds()), over)


async def test_what_renews_is_left_when_the_call_is_over(kept: Callable[..., Awaitable[None]]) -> None:
    claim, over, others = Claim(ago=DUE, answer=silent), asyncio.Event(), asyncio.all_tasks()
    call = asyncio.ensure_future(kept(claim, over))
    await eventually("it is asked", lambda: len(claim.asked) == 1)
    over.set()
    await call
    await eventually("nothing goes on", lambda: asyncio.all_tasks() <= others)


@pytest.mark.parametrize(
    "claim",
    [Claim(DUE, lost), Claim(OVER, away), Claim(OVER, silent)],
    ids=["lost", "away", "silent"],
)
async def test_a_coroutine_is_cancelled_when_its_claim_cannot_be_kept(claim: Claim) -> None:
    with pytest.raises(LeaseOver):
        async with asyncio.timeout(60):
            await on_the_loop(claim, asyncio.Event())
    assert len(claim.asked) == 1


async def test_a_coroutine_that_answers_though_it_was_cancelled_has_answered() -> None:
    """What it says is recorded under the token, if that still holds."""
    claim = Claim(DUE, lost)
    async with Watchdog().kept(LEASE, claim.since, claim.renew):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            answer = "done"
    assert answer == "done"


async def test_a_renewal_counts_from_before_it_was_asked_for() -> None:
    """One that takes long may have been granted at once."""
    claim, over, granted = Claim(DUE), asyncio.Event(), asyncio.Event()

    async def slow() -> bool:
        await granted.wait()
        return True

    claim.answer = slow
    attended = Attended(LEASE, claim.since, claim.renew, over=over.set)
    dog = Watchdog(asyncio.get_running_loop())
    ends = threading.Event()
    call = asyncio.create_task(asyncio.to_thread(dog.call, lambda: ends.wait(60), attended))
    before = attended.until
    await eventually("it is asked", lambda: len(claim.asked) == 1)
    granted.set()
    await eventually("it counts from the renewal", lambda: attended.until > before)
    assert attended.until <= claim.asked[0] + LEASE.total_seconds() * 7 / 8
    ends.set()
    await call
    assert not over.is_set()


async def test_a_thread_goes_on_when_its_claim_is_lost_until_its_time_is_up() -> None:
    claim, given_up, ends = Claim(DUE, lost), asyncio.Event(), threading.Event()

    async def late() -> None:
        given_up.set()

    attended = Attended(LEASE, claim.since, claim.renew, seconds=2.0, late=late)
    dog = Watchdog(asyncio.get_running_loop())
    call = asyncio.create_task(asyncio.to_thread(dog.call, lambda: ends.wait(60), attended))
    async with asyncio.timeout(60):
        await given_up.wait()
    assert len(claim.asked) == 1
    assert not call.done()
    ends.set()
    with pytest.raises(TimeUp):
        await call


async def test_the_time_of_one_call_ends_beside_those_of_others() -> None:
    """Also if it is shorter: the loop looks earlier than it would."""
    dog, ends, late = Watchdog(asyncio.get_running_loop()), threading.Event(), list[str]()

    def attended(name: str, seconds: float) -> Attended:
        async def note() -> None:
            late.append(name)

        claim = Claim()
        return Attended(LEASE, claim.since, claim.renew, seconds=seconds, late=note)

    begun, calls = threading.Event(), list[asyncio.Task[bool]]()

    def work() -> bool:
        begun.set()
        return ends.wait(60)

    for name, seconds in (("long", 3_000.0), ("short", 0.1), ("shorter", 0.0)):
        calls.append(asyncio.create_task(asyncio.to_thread(dog.call, work, attended(name, seconds))))
        await eventually("it has begun", begun.is_set)
        begun.clear()
    await eventually("two are late", lambda: sorted(late) == ["short", "shorter"])
    ends.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(it) for it in found] == [bool, TimeUp, TimeUp]
