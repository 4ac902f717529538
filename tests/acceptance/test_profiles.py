"""Wire profiles: each is played by `relay demo`, and all of them get on in one fleet."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from relay.cli.demo.profiles import Production, produce
from tests.acceptance.profiles import ALL, DEFAULT, NAMES, ProfileFleet
from tests.acceptance.started import Started
from tests.waiting import wait_for

EACH = 150


@pytest.fixture
def directory(server_directory: Path) -> Path:
    server_directory.mkdir(parents=True)
    return server_directory


# All profiles are played below; here the demo plays one, and each in `make soak`.
@pytest.mark.parametrize(
    "name",
    [pytest.param(it, marks=pytest.mark.soak if it != "cloudevents" else ()) for it in NAMES if it != DEFAULT],
)
def test_the_demo_plays_a_profile_and_its_accounts_balance(directory: Path, name: str) -> None:
    with Started(directory, "demo", "--profile", name, "--events", "60") as started:
        assert started.process.wait(120) == 0, started.text
        assert "60 committed, 60 handled\n  8 rolled back" in started.text


def test_a_profile_that_is_not_there_is_refused_with_those_that_are(directory: Path) -> None:
    with Started(directory, "demo", "--profile", "nothing") as started:
        assert started.process.wait(60) == 1
        assert "no profile is called 'nothing' (there are: cloudevents" in started.text


def test_all_profiles_share_a_fleet_and_a_killed_worker_costs_none_of_them_anything(
    server_directory: Path,
) -> None:
    made = {one.name: Production() for one in ALL}
    with ProfileFleet(server_directory) as fleet:
        fleet.scheduler()
        workers = [fleet.worker(), fleet.worker()]
        producers = [
            threading.Thread(
                target=produce,
                args=(one, fleet.urls[one.producer.CONTEXT], EACH, made[one.name], threading.Event()),
            )
            for one in ALL
        ]
        for producer in producers:
            producer.start()
        wait_for("every profile is under way", lambda: all(fleet.inbox_counts(one)[1] > 5 for one in ALL))
        fleet.kill(workers[0])
        for producer in producers:
            producer.join()
        wait_for("everything took effect", lambda: all(len(fleet.effects(one)) >= EACH for one in ALL))
        wait_for("everything is acknowledged", lambda: not any(fleet.waiting(one) for one in ALL))
        for one in ALL:
            committed = made[one.name].committed
            assert len(committed) == EACH
            assert fleet.effects(one) == Counter(committed), one.name
            assert fleet.inbox_counts(one) == (EACH, EACH, 0), one.name
            assert fleet.stored(one) == EACH, one.name
