"""Faults of a link between processes and a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from chaos.proxy import Link
from chaos.stage import Heal, Injection, Stage, lasting

_DELAY_SECONDS: Final = 2.0
#: Powers of ten: from the first byte of a handshake to a few kilobytes into an answer.
_REPLY_BYTES: Final = (0.0, 3.6)


def _link(stage: Stage, target: str) -> Link:
    link = stage.rig.links[target]
    stage.note(f"{link.open} connections")
    return link


def _until_healed(change: Callable[[Link], object]) -> Injection:
    """Return the injection that changes a link and later heals it."""

    @lasting
    def inject(stage: Stage, target: str) -> Heal:
        link = _link(stage, target)
        change(link)
        return link.heal

    return inject


#: Connections are reset, new ones refused.
cut: Final = _until_healed(Link.cut)
#: Nothing passes, nothing is refused; when healed, what was sent meanwhile arrives late.
black_hole: Final = _until_healed(Link.black_hole)
#: Requests arrive and are obeyed, replies come late.
deaf: Final = _until_healed(lambda link: link.black_hole(replies_only=True))
#: Two seconds more in each direction.
delayed: Final = _until_healed(lambda link: link.delay(_DELAY_SECONDS))


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
