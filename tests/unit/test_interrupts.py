"""A request to stop is never lost, whenever it comes."""

from __future__ import annotations

import signal
import threading
import weakref

import pytest

from relay.devstack.interrupts import ignore_interrupts, interruptible


class Thing:
    """Something that can be removed."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_an_object_is_removed_interrupts_a_moment_later(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        _hit(number)


def _hit(number: signal.Signals) -> None:
    """Get a signal while an object is removed, and go on with something long."""
    thing = Thing()
    reference = weakref.ref(thing, lambda _reference: signal.raise_signal(number))
    del thing
    assert reference() is None
    threading.Event().wait(60)


def test_what_was_ignored_at_the_end_does_not_come_later() -> None:
    with interruptible():
        thing = Thing()
        reference = weakref.ref(thing, lambda _reference: signal.raise_signal(signal.SIGINT))
        del thing
        ignore_interrupts()
        threading.Event().wait(0.2)
    assert reference() is None
