"""What pyproject.toml, the wheel and the configuration of the repository say to one another."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from pathlib import Path

from relay.cli import extra, init
from relay.cli.demo import command, profiles
from relay.domain.topology import ConsumerSpec, StreamSpec
from relay.settings import load_settings

ROOT = Path(__file__).parents[2]


def test_the_extra_brings_what_is_required() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {re.split(r"[>=\[]", line)[0] for line in (*extras["demo"], *extras["embedded"])}
    assert {*extra._SERVERS, *extra._HANDLER} <= brought


def test_a_wheel_has_what_the_demo_plays_and_what_init_writes_where_they_are_looked_for() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    places = {ROOT / target: ROOT / source for source, target in wheel["force-include"].items()}
    assert places == dict([command.CONFIG_PLACES, profiles.PLACES, init.PLACES])


def test_the_demo_is_exactly_the_specification() -> None:
    settings = load_settings(ROOT / "relay.toml", {})
    week, ten_gb = timedelta(days=7), 10 * 1024**3
    for name in ("vibespro", "sea"):
        assert settings.contexts[name].stream.spec() == StreamSpec(
            name=f"{name.upper()}_EVENTS",
            subjects=(f"{name}.event.>",),
            max_age=week,
            max_bytes=ten_gb,
            replicas=1,
        )
    assert settings.contexts["sea"].subscriptions["from_vibespro"].consumer_spec() == ConsumerSpec(
        stream="VIBESPRO_EVENTS",
        durable="sea__from_vibespro",
        filter_subject="vibespro.event.>",
        ack_wait=timedelta(seconds=120),
        max_deliver=20,
        max_ack_pending=50,
    )
