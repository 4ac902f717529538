"""Calling functions in threads that may be left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from relay.handling.threads import Overdue, Room, Threads


def room(size: int = 2) -> Room[Any]:
    return Room(Threads(), size, lambda error: error)


def nothing() -> None:
    """Do nothing."""


def call(room: Room[Any], function: Callable[[], Any], seconds: float = 10.0, **options: Any) -> Any:
    return room.call(function, seconds, options.get("every", 10.0), options.get("meanwhile", nothing))


def test_the_result_is_that_of_the_function() -> None:
    assert call(room(), lambda: 7) == 7


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_the_function_raises_is_made_a_result(error: BaseException) -> None:
    def fail() -> None:
        raise error

    assert call(room(), fail) is error


def test_threads_are_used_again() -> None:
    rooms = room()
    assert len({call(rooms, threading.get_ident) for _ in range(50)}) <= 3


def test_a_function_that_hangs_is_left_and_keeps_its_place_until_it_ends() -> None:
    rooms, go_on, ended = room(1), threading.Event(), threading.Event()

    def hang() -> None:
        go_on.wait(30)
        ended.set()

    with pytest.raises(Overdue):
        call(rooms, hang, 0.1)
    begun: list[int] = []
    with pytest.raises(Overdue):
        call(rooms, lambda: begun.append(1), 0.1)
    assert begun == []
    go_on.set()
    assert call(rooms, lambda: 7) == 7
    assert ended.is_set()


def test_whoever_waits_is_called_meanwhile_for_a_place_too() -> None:
    rooms, go_on, waiting = room(1), threading.Event(), threading.Event()
    called: list[int] = []

    def meanwhile() -> None:
        called.append(1)
        if len(called) == 3:
            go_on.set()

    first = threading.Thread(target=call, args=(rooms, lambda: (waiting.set(), go_on.wait(30))))
    first.start()
    assert waiting.wait(10)
    assert call(rooms, lambda: 7, 30.0, every=0.02, meanwhile=meanwhile) == 7
    first.join()
    assert len(called) >= 3
    go_on.clear()
    called.clear()
    assert call(rooms, lambda: go_on.wait(30), 30.0, every=0.02, meanwhile=meanwhile)


def test_the_time_for_a_place_and_for_the_function_is_one() -> None:
    rooms, go_on, waiting = room(1), threading.Event(), threading.Event()
    first = threading.Thread(target=call, args=(rooms, lambda: (waiting.set(), go_on.wait(30))))
    first.start()
    assert waiting.wait(10)
    threading.Timer(0.5, go_on.set).start()
    begin, last = time.monotonic(), threading.Event()
    with pytest.raises(Overdue):
        call(rooms, lambda: last.wait(30), 1.0)
    took = time.monotonic() - begin
    last.set()
    first.join()
    assert 1.0 <= took < 1.5
