"""A fleet and a handler service for each test that asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService


@pytest.fixture
def handler() -> Iterator[HandlerService]:
    with HandlerService() as service:
        yield service


@pytest.fixture
def start_fleet(server_directory: Path, handler: HandlerService) -> Iterator[Callable[..., Fleet]]:
    """Start a fleet's servers, its configuration pointing at ``handler``; options as of `Fleet`."""
    with ExitStack() as stack:

        def start(**options: Any) -> Fleet:
            return stack.enter_context(Fleet(server_directory, **{"handler": handler.url, **options}))

        yield start


@pytest.fixture
def fleet(start_fleet: Callable[..., Fleet]) -> Fleet:
    return start_fleet()
