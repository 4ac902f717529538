"""When a key service is asked for a master key, and what a process does while it is away or refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from relay.adapters.master_keys import AGAIN_S, PAUSE_S, MasterKeys
from relay.domain.errors import KeyServiceUnreachable, MasterKeyMissing, Outage
from relay.domain.personal import SealedKey
from tests.waiting import wait_for

KEY, OTHER = bytes(32), bytes(range(32))
SEALED = SealedKey("alias/relay", b"sealed")


class Service:
    """Answers, and counts the questions."""

    def __init__(self) -> None:
        self.answer: bytes | Outage = KEY
        self.asked = 0

    def open(self, name: str, sealed: SealedKey) -> bytes:
        assert (name, sealed) == ("2026", SEALED)
        self.asked += 1
        if isinstance(self.answer, Outage):
            raise self.answer
        return self.answer


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def ask(service: Service, clock: Time) -> Callable[[], bytes]:
    keys = MasterKeys(lambda: service, clock)
    return lambda: keys.key("2026", SEALED)


def test_a_key_is_asked_for_once(ask: Callable[[], bytes], service: Service) -> None:
    assert [ask() for _ in range(100)] == [KEY] * 100
    assert service.asked == 1


def test_a_crowd_asks_once(ask: Callable[[], bytes], service: Service) -> None:
    threads = [threading.Thread(target=ask) for _ in range(20)]
    for it in threads:
        it.start()
    for it in threads:
        it.join()
    assert service.asked == 1


def test_a_service_that_is_away_at_first_is_an_outage_for_all_who_ask(
    ask: Callable[[], bytes], service: Service, clock: Time
) -> None:
    service.answer = KeyServiceUnreachable("away")
    for _ in range(5):
        with pytest.raises(KeyServiceUnreachable, match="away"):
            ask()
    assert service.asked == 1
    service.answer = KEY
    clock.now = PAUSE_S
    assert ask() == KEY


def test_a_key_that_is_here_outlives_an_outage(ask: Callable[[], bytes], service: Service, clock: Time) -> None:
    ask()
    service.answer = KeyServiceUnreachable("away")
    for _ in range(3):
        before = service.asked
        clock.now += AGAIN_S + 1
        assert ask() == KEY
        wait_for("the service is asked again", lambda before=before: service.asked > before)
    assert ask() == KEY


def test_a_refusal_takes_the_key_away(ask: Callable[[], bytes], service: Service, clock: Time) -> None:
    ask()
    service.answer = MasterKeyMissing("disabled")
    clock.now = AGAIN_S + 1
    assert ask() == KEY

    def refused() -> bool:
        try:
            ask()
        except MasterKeyMissing as error:
            return error.message == "disabled"
        return False

    wait_for("the key is gone", refused)


def test_what_is_no_key_is_refused(ask: Callable[[], bytes], service: Service) -> None:
    service.answer = b"short"
    with pytest.raises(MasterKeyMissing, match="32 bytes"):
        ask()
