"""Faults of a link between processes and a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from chaos.proxy import Link
from chaos.stage import Heal, Stage, lasting

_DELAY_SECONDS: Final = 2.0
#: Powers of ten: from the first byte of a handshake to a few kilobytes into an answer.
_REPLY_BYTES: Final = (0.0, 3.6)


def _link(stage: Stage, target: str) -> Link:
    link = stage.rig.links[target]
    stage.note(f"{link.open} connections")
    return link


@lasting
def cut(stage: Stage, target: str) -> Heal:
    """Connections are reset, new ones refused."""
    link = _link(stage, target)
    link.cut()
    return link.heal


@lasting
def black_hole(stage: Stage, target: str) -> Heal:
    """Nothing passes, nothing is refused; when healed, what was sent meanwhile arrives late."""
    link = _link(stage, target)
    link.black_hole()
    return link.heal


@contextmanager
def forgotten(stage: Stage, target: str) -> Iterator[None]:
    """Nothing passes, nothing is refused; when healed, every connection is reset and what was sent is gone."""
    link = _link(stage, target)
    link.black_hole()
    try:
        yield
    finally:
        link.reset()
        link.heal()


@lasting
def deaf(stage: Stage, target: str) -> Heal:
    """Requests arrive and are obeyed, replies come late."""
    link = _link(stage, target)
    link.black_hole(replies_only=True)
    return link.heal


@contextmanager
def one_way(stage: Stage, target: str) -> Iterator[None]:
    """One direction is gone; when healed, what was sent there arrives late, or the connections are reset."""
    link = stage.rig.links[target]
    requests, forgets = stage.random.random() < 0.5, stage.random.random() < 0.5
    lost = "requests" if requests else "replies"
    stage.note(f"{link.open} connections, {lost} {'lost' if forgets else 'late'}")
    link.black_hole(replies_only=not requests, requests_only=requests)
    try:
        yield
    finally:
        if forgets:
            link.reset()
        link.heal()


@lasting
def delayed(stage: Stage, target: str) -> Heal:
    """Two seconds more in each direction."""
    link = stage.rig.links[target]
    link.delay(_DELAY_SECONDS)
    return link.heal


@contextmanager
def replies_cut(stage: Stage, target: str) -> Iterator[None]:
    """Each connection is reset within a reply, so many bytes into what the server says."""
    link = stage.rig.links[target]
    before, after = link.counters.reset, int(10 ** stage.random.uniform(*_REPLY_BYTES))
    link.cut_replies(after)
    try:
        yield
    finally:
        link.heal()
        stage.note(f"{link.counters.reset - before} connections after {after} bytes")
