"""Every kind of fault: where it may strike, how it is injected and healed, how long it lasts. See `FAULTS`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from relay.chaos import history
from relay.chaos.deployment import LINKS
from relay.chaos.injections import network, processes, servers, store
from relay.chaos.rig import Rig
from relay.chaos.stage import Injection, Stage

#: Shares of `Stage.hold`: nothing but the blow itself, a moment, the whole of it.
_BLOW: Final = 0.0
_MOMENT: Final = 0.25
_WHOLE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. ``touches``: what else than its target it needs to itself while it lasts."""

    name: str
    targets: Callable[[Rig], Sequence[str]]
    inject: Injection
    share: float = _BLOW
    touches: frozenset[str] = frozenset()

    def strike(self, stage: Stage, target: str) -> history.Fault:
        """Inject the fault, let it last, heal it, and record it; whatever goes wrong, the record says so."""
        began = time.time()
        try:
            with self.inject(stage, target):
                stage.stay(self.share)
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


def _processes() -> list[Kind]:
    return [
        kind
        for role in ("worker", "scheduler", "service")
        for kind in (
            Kind(f"{role}-kill", _role(role), processes.killed),
            Kind(f"{role}-term", _role(role), processes.terminated),
            Kind(f"{role}-freeze", _role(role), processes.frozen, _WHOLE),
        )
    ] + [Kind("worker-orphans", _role("worker"), processes.orphaned, _MOMENT)]


def _servers() -> list[Kind]:
    postgres, nats, valkey = _only("postgres"), _only("nats"), _only("valkey")
    return [
        Kind("postgres-immediate", postgres, servers.postgres_immediate),
        Kind("postgres-restart", postgres, servers.stopped),
        Kind("postgres-kill", postgres, servers.killed),
        Kind("postgres-freeze", postgres, servers.frozen, _MOMENT),
        Kind("postgres-backends", postgres, servers.backends_terminated),
        Kind("nats-kill", nats, servers.killed, _MOMENT),
        Kind("nats-stop", nats, servers.stopped, _MOMENT),
        Kind("nats-freeze", nats, servers.frozen, _WHOLE),
        Kind("valkey-flush", valkey, servers.flushed),
        Kind("valkey-kill", valkey, servers.killed, _MOMENT),
        Kind("valkey-restart", valkey, servers.stopped),
        Kind("valkey-freeze", valkey, servers.frozen, _MOMENT),
    ]


def _store() -> list[Kind]:
    alone = frozenset(store.LINKS)
    return [
        Kind("stream-tail-loss", _only("nats"), store.tail_lost, touches=alone),
        Kind("stream-restored", _only("nats"), store.stream_restored, touches=alone),
    ]


def _network() -> list[Kind]:
    links = _only(*LINKS)
    return [
        Kind("link-cut", links, network.cut, _MOMENT),
        Kind("link-black-hole", links, network.black_hole, _WHOLE),
        Kind("link-forgotten", links, network.forgotten, _WHOLE),
        Kind("link-deaf", links, network.deaf, _WHOLE),
        Kind("link-delay", links, network.delayed, _WHOLE),
        Kind("link-cut-reply", links, network.replies_cut, _MOMENT),
    ]


#: By name. The rows that can never be published come from the workload (`Stage.poison`).
FAULTS: Final[dict[str, Kind]] = {
    kind.name: kind
    for kind in [
        *_processes(),
        *_servers(),
        *_store(),
        *_network(),
        Kind("poison-rows", _only("producer"), servers.poisoned),
    ]
}
