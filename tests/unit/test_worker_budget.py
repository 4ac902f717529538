"""The work queue of a worker process: slow duties never take the threads of the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import SimpleNamespace

import pytest

from relay.adapters.dramatiq.runtime import WorkerRuntime
from relay.adapters.dramatiq.work_queue import DEFAULT, MAX_HANGING_CALLS, BudgetedQueue


@dataclass(order=True)
class Item:
    priority: int
    name: str = field(compare=False)
    own: int | None = field(compare=False, default=None)
    share: str = field(compare=False, default="")

    @property
    def message(self) -> SimpleNamespace:
        options = {"share": self.share} | ({} if self.own is None else {"task_priority": self.own})
        return SimpleNamespace(queue_name=self.name, options=options)


OVER = threading.Event()


@pytest.fixture(autouse=True)
def busy() -> Iterator[None]:
    """The threads of `take` stay until the test is over: another would get the identity of one that has ended."""
    OVER.clear()
    yield
    OVER.set()


def take(queue: BudgetedQueue) -> Item:
    """Take an item in a thread of its own, as a worker thread that stays busy with it."""
    taken = SimpleQueue[Item | None]()

    def work() -> None:
        try:
            taken.put(queue.get_nowait())
        except Empty:
            taken.put(None)
        else:
            OVER.wait()

    threading.Thread(target=work).start()
    if (item := taken.get()) is None:
        raise Empty
    return item


def test_a_queue_gets_no_more_threads_than_its_budget() -> None:
    queue = BudgetedQueue({"slow": 2, DEFAULT: 8})
    for _ in range(3):
        queue.put(Item(1, "slow"))
    take(queue)
    take(queue)
    with pytest.raises(Empty):
        take(queue)


def test_messages_behind_a_queue_that_is_out_of_budget_are_still_handed_out() -> None:
    queue = BudgetedQueue({"slow": 1, DEFAULT: 8})
    queue.put(Item(0, "slow"))
    queue.put(Item(0, "slow"))
    queue.put(Item(9, "other"))
    assert [take(queue).name, take(queue).name] == ["slow", "other"]


def test_a_finished_message_gives_its_place_to_the_next() -> None:
    queue = BudgetedQueue({"slow": 1, DEFAULT: 8})
    queue.put(Item(0, "slow"))
    queue.put(Item(0, "slow"))
    queue.get()
    with pytest.raises(Empty):
        take(queue)
    queue.task_done()
    assert take(queue).name == "slow"


def wait(queue: BudgetedQueue) -> threading.Event:
    """Wait for an item in another thread, which sets the event when it gets one."""
    got, before = threading.Event(), waiters(queue)

    def work() -> None:
        with suppress(Empty):
            queue.get(timeout=10)
            got.set()

    threading.Thread(target=work, daemon=True).start()
    while waiters(queue) == before:
        time.sleep(0.001)
    return got


def waiters(queue: BudgetedQueue) -> int:
    return len(queue.not_empty._waiters)  # type: ignore[attr-defined]


def test_a_waiting_thread_wakes_up_when_a_busy_one_is_passed_over() -> None:
    queue = BudgetedQueue({"slow": 1, DEFAULT: 8})
    queue.put(Item(0, "slow"))
    queue.put(Item(0, "slow"))
    queue.get()
    got = wait(queue)
    queue.pass_over(threading.get_ident())
    assert got.wait(10)


def test_an_idle_thread_is_not_woken_for_nothing() -> None:
    """A dramatiq worker asks for a second; while nothing comes, it does not get to ask again."""
    queue, got = BudgetedQueue({DEFAULT: 8}), threading.Event()
    waiter = threading.Thread(target=lambda: (queue.get(timeout=0.001), got.set()), daemon=True)
    waiter.start()
    assert not got.wait(0.2)
    assert waiter.is_alive()
    queue.put(Item(1, "other"))
    assert got.wait(10)


def test_who_waits_while_the_worker_shuts_down_is_woken_and_waits_no_more() -> None:
    queue, woken = BudgetedQueue({DEFAULT: 8}), threading.Event()

    def wait() -> None:
        with pytest.raises(Empty):
            queue.get(timeout=600)
        with pytest.raises(Empty):
            queue.get(timeout=600)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.05)
    queue.hurry()
    assert woken.wait(60)


def test_whoever_finishes_wakes_nobody_and_whoever_takes_wakes_for_what_is_left() -> None:
    queue = BudgetedQueue({"slow": 1, DEFAULT: 8})
    queue.put(Item(5, "slow"))
    queue.put(Item(5, "slow"))
    queue.get()
    first, second = wait(queue), wait(queue)
    queue.task_done()
    assert not first.wait(0.05)
    queue.put(Item(0, "other"))
    assert first.wait(10)
    assert second.wait(10)


def test_nobody_is_woken_for_a_message_that_is_out_of_budget() -> None:
    queue = BudgetedQueue({"slow": 1, DEFAULT: 8})
    queue.put(Item(0, "slow"))
    queue.get()
    wait(queue)
    queue.put(Item(0, "slow"))
    assert waiters(queue) == 1


def test_within_the_budgets_the_lower_number_goes_first() -> None:
    queue = BudgetedQueue({"slow": 8, DEFAULT: 8})
    queue.put(Item(5, "slow"))
    queue.put(Item(1, "other"))
    queue.put(Item(3, "slow"))
    assert [take(queue).priority for _ in range(3)] == [1, 3, 5]


def test_a_message_may_carry_a_priority_of_its_own() -> None:
    queue = BudgetedQueue({"tasks": 8, DEFAULT: 8})
    for own in (90, 10, 50):
        queue.put(Item(50, "tasks", own))
    assert [take(queue).own for _ in range(3)] == [10, 50, 90]


# --- shares of a queue ---


def shared(*shares: str) -> list[Item]:
    return [Item(10, "handle", share=share) for share in shares]


def taken(queue: BudgetedQueue, most: int = 100) -> str:
    """The shares that threads of their own get, one after the other, until there is nothing for the next."""
    found = ""
    with suppress(Empty):
        while len(found) < most:
            found += take(queue).share
    return found


def test_a_share_that_is_alone_has_the_whole_budget() -> None:
    queue = BudgetedQueue({DEFAULT: 8})
    for item in shared(*"a" * 20):
        queue.put(item)
    assert taken(queue) == "a" * 8


def test_who_has_fewest_threads_is_next() -> None:
    queue = BudgetedQueue({DEFAULT: 6})
    for item in shared(*"aaaaaabbbbbb"):
        queue.put(item)
    assert taken(queue, 6) == "ababab"


@pytest.mark.parametrize(("budget", "least"), [(1, 1), (8, 2), (32, 8)])
def test_however_many_hang_who_comes_late_has_a_part_of_the_budget(budget: int, least: int) -> None:
    queue = BudgetedQueue({DEFAULT: budget})
    for item in shared(*"a" * 100):
        queue.put(item)
    assert taken(queue) == "a" * budget
    for share in "bcdefghi":
        for item in shared(*share * 100):
            queue.put(item)
        assert taken(queue) == share * least


def test_a_queue_without_shares_has_its_budget_and_no_more() -> None:
    queue = BudgetedQueue({"pull": 2, DEFAULT: 8})
    for _ in range(5):
        queue.put(Item(0, "pull"))
    assert len([take(queue), take(queue)]) == 2
    with pytest.raises(Empty):
        take(queue)


def test_a_thread_is_added_when_all_are_busy_and_a_message_may_begin() -> None:
    added: list[int] = []
    queue = BudgetedQueue({DEFAULT: 2})
    queue.threads, queue.more = 2, lambda: added.append(1)
    for item in shared(*"aaaa"):
        queue.put(item)
    assert (taken(queue), added) == ("aa", [])
    [late] = shared("b")
    queue.put(late)
    assert added == [1]
    queue.put(late)
    assert added == [1], "of a budget of two a share that comes late has one"
    assert (taken(queue), queue.threads) == ("b", 3)


def test_a_share_with_many_that_hang_begins_nothing_until_one_returns() -> None:
    queue = BudgetedQueue({DEFAULT: 1})
    release, threads = threading.Event(), list[threading.Thread]()
    for item in shared(*"a" * (MAX_HANGING_CALLS + 1)):
        queue.put(item)

    def hang() -> None:
        queue.get_nowait()
        release.wait(20)
        queue.task_done()

    for _ in range(MAX_HANGING_CALLS):
        threads.append(threading.Thread(target=hang))
        threads[-1].start()
        while not queue._thread_shares:
            time.sleep(0.001)
        queue.pass_over(threads[-1].ident or 0)
    assert taken(queue) == ""
    [other] = shared("b")
    queue.put(other)
    assert taken(queue) == "b"
    release.set()
    for thread in threads:
        thread.join(20)
    assert taken(queue) == "a"


# --- threads that hang ---


class Workers:
    """As much of a Dramatiq worker as replacing a thread touches."""

    def __init__(self) -> None:
        self.work_queue = BudgetedQueue({"slow": 1, DEFAULT: 8})
        self.workers: list[Hanging] = []

    def _add_worker(self) -> None:
        self.workers.append(Hanging())


class Hanging(threading.Thread):
    """A thread that hangs, and whether it was told to end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.told, self.gate = False, threading.Event()
        self.start()

    def run(self) -> None:
        self.gate.wait(60)

    def stop(self) -> None:
        self.told = True


async def nothing() -> None:
    return


@pytest.fixture
def runtime() -> WorkerRuntime:
    runtime = WorkerRuntime(start=nothing, quiesce=lambda: None, stop=nothing, budgets={})
    runtime._worker = Workers()
    return runtime


def test_another_thread_takes_the_place_of_one_that_hangs(runtime: WorkerRuntime) -> None:
    worker = runtime._worker
    worker._add_worker()
    for _ in range(3):
        [thread] = worker.workers
        assert runtime.replace_thread(thread)
        assert (thread.told, thread in worker.workers, len(worker.workers)) == (True, False, 1)
        assert not runtime.replace_thread(thread)


def test_no_thread_is_added_once_the_worker_stops(runtime: WorkerRuntime) -> None:
    worker = runtime._worker
    worker._add_worker()
    runtime.before_worker_shutdown(None, worker)  # type: ignore[arg-type]
    [thread] = worker.workers
    assert not runtime.replace_thread(thread)
    assert worker.workers == [thread]


def test_messages_without_a_share_go_on_beside_shares_that_have_spent_the_budget() -> None:
    queue = BudgetedQueue({DEFAULT: 4})
    for _ in range(5):
        queue.put(Item(0, "q", share="hanging"))
    assert [take(queue).share for _ in range(4)] == ["hanging"] * 4
    queue.put(Item(9, "q"))
    assert take(queue).share == ""
