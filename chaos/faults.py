"""Every kind of fault: where it may strike, how it is injected and healed, how long it lasts. See `FAULTS`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from chaos import history
from chaos.deployment import LINKS
from chaos.injections import (
    archive,
    broken_keys,
    cluster,
    failover,
    foreign_answers,
    functions,
    hostile,
    hostile_rows,
    network,
    operators,
    processes,
    restored,
    servers,
    sessions,
    still,
    store,
    twins,
    workers,
)
from chaos.rig import Rig
from chaos.stage import Injection, Stage

#: While a kind that touches this lasts, no other fault may be active.
ALONE: Final = "everything"
#: The kind that upgrades the schema to a made-up next release.
UPGRADE: Final = "postgres-upkeep"
#: These come early, one after the other: some code waits for the newest schema, and a hang takes 20 s of a run
#: that may be short.
EARLY: Final = (UPGRADE, "handler-hang")
#: How long a handler hangs, in seconds: long enough to see the effect on others.
_HANG_SECONDS: Final = 20.0
#: How long a handler is away, in seconds: long enough that its circuit opens.
_AWAY_SECONDS: Final = 15.0
#: How long settings are odd, in seconds: long enough that a fleet which cannot work with them stands still.
_ODD_SECONDS: Final = 12.0
#: Workers of a run, more than there are: what happens to their processes is another fault's doing.
_WORKERS: Final = tuple(f"worker-{number}" for number in range(1, 17))
#: Shares of `Stage.hold`: the fault ends at once, after a moment, or after the whole time.
_BLOW: Final = 0.0
_MOMENT: Final = 0.25
_WHOLE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    ``targets``: where it may strike in this rig; nowhere if the rig lacks what it needs. ``touches``: what no
    other fault may touch meanwhile, besides its target. ``at_least``: seconds that it lasts in any case.
    ``prepare``: what happens before the fault begins.
    """

    name: str
    targets: Callable[[Rig], Sequence[str]]
    inject: Injection
    share: float = _BLOW
    touches: frozenset[str] = frozenset()
    at_least: float = 0.0
    prepare: Callable[[Stage], None] | None = None

    def strike(self, stage: Stage, target: str) -> history.Fault:
        """Inject the fault, let it last, heal it, and record it together with anything that goes wrong."""
        if self.prepare is not None:
            self.prepare(stage)
        began = time.time()
        try:
            with self.inject(stage, target):
                stage.stay(self.share, self.at_least)
        except Exception as error:
            stage.note(f"went wrong: {type(error).__name__}: {error}")
            raise
        finally:
            note = "; ".join(stage.notes)
            fault = history.Fault(stage.number, self.name, target, began, time.time(), note)
            stage.history.write(fault)
        return fault


def _role(role: str) -> Callable[[Rig], Sequence[str]]:
    return lambda rig: [process.name for process in rig.of_role(role) if process.wanted]


def _only(*names: str) -> Callable[[Rig], Sequence[str]]:
    return lambda _rig: names


def _in(topology: str, *names: str) -> Callable[[Rig], Sequence[str]]:
    return lambda rig: names if rig.topology == topology else ()


def _but_in(topology: str, *names: str) -> Callable[[Rig], Sequence[str]]:
    return lambda rig: names if rig.topology != topology else ()


def _with_disk(name: str) -> Callable[[Rig], Sequence[str]]:
    return lambda rig: [name] if name in rig.disks else []


def _processes() -> list[Kind]:
    return [
        kind
        for role in ("worker", "scheduler", "service")
        for kind in (
            Kind(f"{role}-kill", _role(role), processes.killed),
            Kind(f"{role}-term", _role(role), processes.terminated),
            Kind(f"{role}-freeze", _role(role), processes.frozen, _WHOLE),
        )
    ] + [
        Kind("worker-orphans", _role("worker"), processes.orphaned, _MOMENT),
        Kind("worker-stall", _role("worker"), workers.stalled),
        Kind("worker-clock", _role("worker"), workers.clock_wrong, _WHOLE),
    ]


def _servers() -> list[Kind]:
    postgres, nats, valkey = _only("postgres"), _but_in("cluster", "nats"), _only("valkey")
    return [
        Kind("postgres-immediate", postgres, servers.postgres_immediate),
        Kind("postgres-restart", postgres, servers.stopped),
        Kind("postgres-kill", postgres, servers.killed),
        Kind("postgres-freeze", postgres, servers.frozen, _MOMENT),
        Kind("postgres-backends", postgres, servers.backends_terminated),
        Kind("postgres-disk-full", _with_disk("postgres"), servers.disk_full, _MOMENT),
        Kind(UPGRADE, postgres, operators.kept_up, _MOMENT),
        Kind("nats-disk-full", _with_disk("nats"), servers.disk_full, _MOMENT),
        Kind("nats-kill", nats, servers.killed, _MOMENT),
        Kind("nats-stop", nats, servers.stopped, _MOMENT),
        Kind("nats-freeze", nats, servers.frozen, _WHOLE),
        Kind("valkey-flush", valkey, servers.flushed),
        Kind("valkey-kill", valkey, servers.killed, _MOMENT),
        Kind("valkey-restart", valkey, servers.stopped),
        Kind("valkey-freeze", valkey, servers.frozen, _MOMENT),
    ]


def _store() -> list[Kind]:
    alone, nats = frozenset(store.LINKS), _but_in("cluster", "nats")
    return [
        Kind("stream-tail-loss", nats, store.tail_lost, touches=alone),
        Kind("stream-restored", nats, store.stream_restored, touches=alone),
    ]


def _cluster() -> list[Kind]:
    """Return the faults of a cluster: one node down at a time, because two must be up; leaders that change."""
    node = _in("cluster", "nats")
    return [
        Kind("node-kill", node, cluster.node_killed, _MOMENT),
        Kind("node-stop", node, cluster.node_stopped, _MOMENT),
        Kind("node-freeze", node, cluster.node_frozen, _WHOLE),
        Kind("leader-kill", node, cluster.leader_killed, _MOMENT),
        Kind("leader-change", node, cluster.leaders_changed),
    ]


def _failover() -> list[Kind]:
    """Return the faults of a PostgreSQL with a replica."""
    postgres = _in("failover", "postgres")
    return [
        Kind("failover-kill", postgres, failover.primary_killed, _MOMENT),
        Kind("failover-freeze", postgres, failover.primary_frozen, _MOMENT),
        Kind("failover-planned", postgres, failover.switched_over, _MOMENT),
        Kind("replica-kill", postgres, failover.replica_killed, _MOMENT),
    ]


def _producer() -> list[Kind]:
    """Return the faults of the producer's database that nobody but its operators can put right."""
    alone, shop = frozenset({ALONE}), _only("postgres")
    return [
        Kind("producer-adopted", shop, restored.adopted, touches=alone),
        Kind("producer-reported", shop, restored.reported, touches=alone),
        Kind("sequence-back", shop, restored.sequence_back),
    ]


def _still() -> list[Kind]:
    """Return the causes that hold a backlog still until somebody mends them."""
    alone, postgres, nats = frozenset({ALONE}), _only("postgres"), _only("nats")
    return [
        Kind("still-stream", nats, still.stream_full, touches=alone),
        Kind("still-sealed", nats, still.stream_sealed, touches=alone),
        Kind("still-consumer", nats, still.consumer_deleted, touches=alone),
        Kind("still-pause", nats, still.consumer_paused, touches=alone),
        Kind("still-right", postgres, still.right_revoked, touches=alone),
        Kind("still-lock", postgres, still.table_locked, touches=alone),
        Kind("still-loop", _role("worker"), still.loop_dead, touches=alone),
        Kind("still-workers", _only("workers"), still.workers_stopped, touches=alone),
        Kind("still-schedulers", _only("schedulers"), still.schedulers_stopped, touches=alone),
    ]


def _network() -> list[Kind]:
    links = _only(*LINKS)
    return [
        Kind("link-cut", links, network.cut, _MOMENT),
        Kind("link-black-hole", links, network.black_hole, _WHOLE),
        Kind("link-forgotten", links, network.forgotten, _WHOLE),
        Kind("link-deaf", links, network.deaf, _WHOLE),
        Kind("link-one-way", links, network.one_way, _WHOLE),
        Kind("link-delay", links, network.delayed, _WHOLE),
        Kind("link-cut-reply", links, network.replies_cut, _MOMENT),
    ]


def _people() -> list[Kind]:
    """Return the faults that producers, strangers and operators cause."""
    producer = _only("producer")
    return [
        Kind("poison-rows", producer, operators.poisoned),
        Kind("large-payloads", producer, operators.large_payloads),
        Kind("future-rows", producer, operators.from_the_future),
        Kind("failing-messages", producer, operators.failing),
        Kind("hostile-messages", _but_in("cluster", "nats"), hostile.hostile_messages),
        Kind("same-ids", producer, twins.same_ids),
        Kind("forged-letters", _but_in("cluster", "nats"), hostile.forged_letters),
        Kind("operator-commands", _only("operator"), operators.commanded),
        Kind("archive", _only("operator"), archive.archived),
        Kind("handler-away", _only("service"), operators.away, _WHOLE, at_least=_AWAY_SECONDS),
        Kind(
            "handler-hang",
            _only("service"),
            operators.hanging,
            _WHOLE,
            frozenset({ALONE}),
            _HANG_SECONDS,
            operators.await_caught_up,
        ),
    ]


def _strange() -> list[Kind]:
    """Return what strangers, sessions and functions do. The system must go on beside it, in every mode."""
    postgres, handlers = _only("postgres"), _only("handlers")
    return [
        Kind("hostile-rows", _only("producer"), hostile_rows.hostile_rows),
        Kind("foreign-answers", _but_in("cluster", "nats"), foreign_answers.foreign_answers, _MOMENT),
        Kind("odd-sessions", postgres, sessions.odd_sessions, _MOMENT, at_least=_ODD_SECONDS),
        Kind("few-connections", _in("single", "postgres"), sessions.few_connections),
        Kind("leftovers", handlers, functions.leftovers, _WHOLE),
        Kind("base-exceptions", handlers, functions.base_exceptions, _WHOLE, frozenset(_WORKERS)),
        Kind("broken-keys", _only("valkey"), broken_keys.broken_keys),
    ]


#: By name. What is committed for a fault comes from the workload (`Stage.commit`).
FAULTS: Final[dict[str, Kind]] = {
    kind.name: kind
    for kind in [
        *_processes(),
        *_servers(),
        *_store(),
        *_cluster(),
        *_failover(),
        *_producer(),
        *_still(),
        *_network(),
        *_people(),
        *_strange(),
    ]
}
#: Kinds that also strike where nothing heals: what other programs do does not end there either.
IN_LIVENESS: Final = tuple(kind.name for kind in _strange())
