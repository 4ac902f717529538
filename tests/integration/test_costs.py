"""What an event costs the servers does not change unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import costs
from tests.integration.metering import Laboratory, laboratory, measured


@pytest.fixture(scope="module")
def lab(server_root: Path) -> Iterator[Laboratory]:
    with laboratory(server_root / "costs") as lab:
        yield lab


@pytest.mark.parametrize("name", costs.SCENARIOS)
def test_it_costs_what_it_is_known_to_cost(lab: Laboratory, name: str) -> None:
    found = costs.differences(measured(lab, costs.SCENARIOS[name]), costs.known().get(name, {}))
    assert not found, "\n".join(
        [f"what {name} costs has changed:", *found, f"If it is meant to, for better or worse: {costs.ACCEPT}"]
    )
