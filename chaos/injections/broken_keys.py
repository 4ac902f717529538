"""Keys in Redis that another program has broken, jobs that nobody can read, and names of queues that nobody knows.

All of it is replaced, or `relay doctor` names it, and then an operator deletes what it names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final
from uuid import UUID

import psycopg
import redis

from chaos import probes
from chaos.deployment import CONSUMING, STRANGER, as_role
from chaos.history import Diagnosed, Probe, now
from chaos.injections.still import NAMED_WITHIN, errors
from chaos.stage import Stage
from relay.adapters.dramatiq.gates import gate_key, routines_key, sent_key
from relay.adapters.redis_keys import fleet_keys, queue_keys
from relay.bootstrap import duties
from relay.jobs import QUEUES

#: How a value of each type is written.
TYPES: Final[Mapping[str, tuple[Any, ...]]] = {
    "string": ("SET", "x"),
    "list": ("RPUSH", "x"),
    "set": ("SADD", "x"),
    "zset": ("ZADD", 1, "x"),
    "hash": ("HSET", "x", "x"),
    "stream": ("XADD", "*", "x", "x"),
}
#: The type of a key by the command that reads it.
_READ_BY: Final = {"GET": "string", "LLEN": "list", "SMEMBERS": "set", "ZCARD": "zset", "HLEN": "hash"}
_HELD: Final = ("x", "", "done", f"{0:032}:0", f"{0:032}:0:waits")
_UNREADABLE: Final = (b"not JSON", b"5", b"[]", b"{}", b"\xff\xfe", b"[" * 10_000, b'{"options": 5}')
_INVENTED: Final = 1_000
_INVENT: Final = """
INSERT INTO task_outbox (id, type, payload, queue)
SELECT gen_random_uuid(), 'nobody', '{}', 'invented-' || n FROM generate_series(1, %s) AS n
"""
_FORGET: Final = "DELETE FROM task_outbox WHERE type = 'nobody'"
#: How long a task may take beside them, in seconds.
_PROBED_WITHIN: Final = 60.0
_LOOK_SECONDS: Final = 0.2


@contextmanager
def broken_keys(stage: Stage, _target: str) -> Iterator[None]:
    """Gates without expiry, keys of another type, unreadable jobs; a task behind a thousand invented queues."""
    with closing(redis.Redis.from_url(stage.rig.valkey.url)) as client:
        gates = [gate_key(stage.rig.settings.redis_namespace, duty) for duty in _duties(stage)]
        broken = _break(stage, client)
        for gate in stage.random.sample(gates, len(gates) // 2):
            client.set(gate, stage.random.choice(_HELD))
            broken.pop(gate, None)
        _fill_queues(client, stage.rig.settings.redis_namespace)
        stage.note(f"{len(broken)} keys")
        try:
            _probe(stage)
            yield
            _delete_what_is_named(stage, client, broken)
        finally:
            with suppress(psycopg.Error), psycopg.connect(stage.rig.urls[CONSUMING], connect_timeout=5) as sea:
                sea.execute(_FORGET.encode())


def known(stage: Stage) -> Mapping[str, str]:
    """The keys of the fleet, and the type of each."""
    space = stage.rig.settings.redis_namespace
    readers = {**fleet_keys(space), sent_key(space): "HLEN"}
    for queue in QUEUES:
        readers |= queue_keys(space, queue)
    for duty in _duties(stage):
        readers |= {gate_key(space, duty): "GET", routines_key(space, duty): "HLEN"}
    return {key: _READ_BY[reader] for key, reader in readers.items()}


def _duties(stage: Stage) -> Sequence[str]:
    return [duty.key for context in stage.rig.settings.contexts.values() for duty in duties(context)]


def _break(stage: Stage, client: Any) -> dict[str, str]:
    """Give half of all keys a value of another type; returns them with the type that they have now."""
    keys = known(stage)
    broken: dict[str, str] = {}
    for key in stage.random.sample([*keys], len(keys) // 2):
        broken[key] = stage.random.choice([it for it in TYPES if it != keys[key]])
        command, *words = TYPES[broken[key]]
        # At once: in between, the fleet would make the key again.
        with client.pipeline(transaction=True) as both:
            both.delete(key)
            both.execute_command(command, key, *words)
            both.execute()
    return broken


def _fill_queues(client: Any, space: str) -> None:
    """Each queue has jobs that nobody can read, in front of the others."""
    for queue in QUEUES:
        for number, text in enumerate(_UNREADABLE):
            with suppress(redis.ResponseError):  # the key has another type
                client.hset(f"{space}:{queue}.msgs", f"odd-{number}", text)
                client.lpush(f"{space}:{queue}", f"odd-{number}")


# --- afterwards ---


def _probe(stage: Stage) -> None:
    """Record how long a task takes that comes after the invented ones. The end of a run cuts it short."""
    try:
        with psycopg.connect(as_role(stage.rig.urls[CONSUMING], STRANGER), connect_timeout=5) as stranger:
            stranger.execute(_INVENT.encode(), [_INVENTED])
        with psycopg.connect(stage.rig.urls[CONSUMING], connect_timeout=5, autocommit=True) as sea:
            began, id = now(), probes.commit_probe(sea)
    except psycopg.Error as error:
        stage.note(type(error).__name__)
        return
    deadline = time.monotonic() + _PROBED_WITHIN
    while not (ran := _has_run(stage, id)) and time.monotonic() < deadline and not stage.over.is_set():
        stage.over.wait(_LOOK_SECONDS)
    if ran or not stage.over.is_set():
        stage.history.write(Probe(stage.number, began, now() if ran else None))
        stage.note(f"a task took {now() - began:.1f} s" if ran else "a task did not run")


def _has_run(stage: Stage, id: UUID) -> bool:
    with suppress(psycopg.Error), psycopg.connect(stage.rig.urls[CONSUMING], connect_timeout=5) as sea:
        return probes.has_run(sea, id)
    return False


def _delete_what_is_named(stage: Stage, client: Any, broken: Mapping[str, str]) -> None:
    """Wait until each key that nothing has replaced is named; then an operator deletes these."""
    began = time.monotonic()
    while True:
        told = errors(stage).get("QUEUE_KEY_TYPE", "")
        # Asked afterwards: what was replaced meanwhile need not be named.
        left = [key for key, kind in broken.items() if client.type(key).decode() == kind]
        unnamed = [key for key in left if f"the key {key} holds" not in told]
        if not unnamed or time.monotonic() - began > NAMED_WITHIN:
            break
        stage.over.wait(_LOOK_SECONDS)
    for key in left:
        client.delete(key)
    named = None if unnamed else time.monotonic() - began
    stage.history.write(Diagnosed(stage.number, "broken_keys", named, 0.0, ", ".join(unnamed)))
    stage.note(f"{len(left)} keys were named")
