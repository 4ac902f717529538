"""Checks of Redis. It may lose everything at any moment, so none of these endangers what is committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from relay.adapters.members import process_runs, this_place
from relay.adapters.redis_inspection import QueueState
from relay.domain.findings import Finding, error, unknown, warning
from relay.domain.members import State
from relay.ops.doctor.databases import skewed

_SERVER: Final = "redis"
_FULL: Final = 0.9
_KINDS: Final = {"worker", "fleet"}


def writable(state: QueueState) -> Iterator[Finding]:
    """Jobs can be written."""
    if state.replica:
        yield error(
            "QUEUE_READ_ONLY", _SERVER, "it is a replica and takes no jobs", "let redis_url name the primary"
        )


def clock(state: QueueState) -> Iterator[Finding]:
    """This machine and the server have the same time."""
    if finding := skewed(_SERVER, state.ahead, state.exact):
        yield finding


def keys(state: QueueState) -> Iterator[Finding]:
    """Our keys hold our values."""
    for key in state.wrong:
        text = f"the key {key} holds another type of value than ours: what needs it stands still"
        yield error("QUEUE_KEY_TYPE", _SERVER, text, f"find out who writes there, and DEL {key}")
    for key in state.stuck:
        text = f"{key} never expires, so no job holds it: its duty is not done"
        yield error("GATE_STUCK", _SERVER, text, f"a scheduler mends this within seconds; else: DEL {key}")


def members(state: QueueState) -> Iterator[Finding]:
    """Every process of the fleets still says that it is there."""
    for seen in state.members:
        if seen.state is State.LOST and seen.member.kind in _KINDS:
            here = seen.member.place == this_place() != ""
            alive = here and process_runs(seen.member.pid)
            if here and not alive:
                continue  # it was killed, and its work is taken over
            why = "its event loop hangs" if alive else "it was killed, hangs, or is cut off"
            who = f"{seen.member.kind} {seen.member.host}:{seen.member.pid}"
            text = f"{who} has been silent for {seen.silent_seconds:.0f} s: {why}"
            yield (error if alive else warning)("MEMBER_SILENT", _SERVER, text, "end it: it is started again")


CHECKS: Final = (writable, clock, keys, members)

# --- a closer look ---


def memory(state: QueueState) -> Iterator[Finding]:
    """No job is dropped for want of memory."""
    if state.refused:
        text = f"its memory cannot be checked: this user may not ask {state.refused}"
        yield unknown("QUEUE_UNKNOWN", _SERVER, text, "grant it: +info")
    if state.policy != "noeviction":
        yield warning(
            "QUEUE_EVICTS",
            _SERVER,
            f"maxmemory_policy is {state.policy}: a full server drops jobs, which are sent again seconds later",
            "set maxmemory-policy noeviction, or use a separate server for the queue",
        )
    if 0 < state.limit * _FULL < state.used:
        text = f"{state.used} of {state.limit} bytes are in use: a full server takes no jobs"
        yield warning("QUEUE_FULL", _SERVER, text, "raise maxmemory")


def workers(state: QueueState) -> Iterator[Finding]:
    """A worker takes the jobs."""
    if not state.workers:
        yield warning(
            "NO_WORKER",
            _SERVER,
            "no worker took jobs within the last minute",
            "run: dramatiq relay.actors",
        )


CLOSE_CHECKS: Final = (memory, workers)
