"""Which error of several attempts to connect is told."""

from __future__ import annotations

import ssl

import nats.errors
import pytest

from relay.adapters.jetstream.refusals import ClosedAfterHandshakeError, telling

REFUSED = nats.errors.Error("'Authorization Violation'")
RESET = ConnectionResetError(104, "Connection reset by peer")
CLOSED = ClosedAfterHandshakeError("the server closed it after the handshake")
ALERT = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")
AWAY = ConnectionRefusedError(111, "Connect call failed")


@pytest.mark.parametrize(
    ("before", "error", "told"),
    [
        (REFUSED, RESET, REFUSED),  # the reset has overtaken the reason
        (REFUSED, AWAY, AWAY),  # the server has gone since
        (RESET, REFUSED, REFUSED),
        (AWAY, RESET, RESET),
        (ALERT, RESET, ALERT),
        (ALERT, CLOSED, ALERT),
        (CLOSED, RESET, CLOSED),
        (ALERT, AWAY, AWAY),
    ],
)
def test_what_is_refused_is_told_though_a_reset_follows(
    before: Exception, error: Exception, told: Exception
) -> None:
    assert telling(before, error) is told
