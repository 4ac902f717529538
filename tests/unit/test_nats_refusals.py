"""Which error of several attempts to connect is told."""

from __future__ import annotations

import nats.errors
import pytest

from relay.adapters.jetstream.refusals import telling

REFUSED = nats.errors.Error("'Authorization Violation'")
RESET = ConnectionResetError(104, "Connection reset by peer")
AWAY = ConnectionRefusedError(111, "Connect call failed")


@pytest.mark.parametrize(
    ("before", "error", "told"),
    [
        (REFUSED, RESET, REFUSED),  # the reset has overtaken the reason
        (REFUSED, AWAY, AWAY),  # the server has gone since
        (RESET, REFUSED, REFUSED),
        (AWAY, RESET, RESET),
    ],
)
def test_credentials_that_are_refused_are_told_though_a_reset_follows(
    before: Exception, error: Exception, told: Exception
) -> None:
    assert telling(before, error) is told
