"""The steps of `relay context restore`: streams, numbers, lost events, unknown events, inboxes.

Each step reads what there is and does what is left, so after an interruption the command is given again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from relay.adapters.jetstream import topology
from relay.adapters.postgres.replays import PostgresReplays
from relay.adapters.postgres.row_operations import audit
from relay.adapters.postgres.sequences import mend_sequences, sequences_behind
from relay.bootstrap import Application
from relay.cli.progress import bar
from relay.commands.adopt import DecidedOrphans
from relay.commands.balance import Part
from relay.credentials import jetstream
from relay.domain.errors import ConsumerMissing, RelayError
from relay.domain.operators import Operator
from relay.domain.replays import ReplayRunning
from relay.settings import Settings

#: How many messages a second workers read again at most. They read no faster than they handle.
_RATE: Final = 10_000
#: Times of the server have more digits than ours.
_SLACK: Final = timedelta(seconds=1)
_LOOK_EVERY_S: Final = 0.5


class Unknown(StrEnum):
    """What becomes of events that a stream has and the outbox does not know."""

    ADOPT = "adopt"
    REPORT = "report"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step did, or would do: to so many, None for all. ``undone``: it is left to the operator."""

    context: str
    step: str
    count: int | None = None
    text: str = ""
    undone: bool = False


@dataclass(slots=True, kw_only=True)
class Restore:
    """Brings contexts into balance. ``counted``: the place of the last orphan of each stream that was counted."""

    application: Application
    names: Sequence[str]
    by: Operator
    unknown: Unknown | None = None
    since: datetime | None = None
    counted: Mapping[tuple[str, str], int] | None = None
    steps: list[Step] = field(default_factory=list)
    failed: dict[str, RelayError] = field(default_factory=dict)
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    replays: dict[str, list[int]] = field(default_factory=dict)

    async def run(self, *, dry_run: bool) -> None:
        """Do all steps of all contexts, a step of each context before the next step: consumers come last."""
        for step in (self._streams, self._numbers, self._lost, self._decide, self._inboxes):
            for name in self.names:
                if name in self.failed or (step == self._inboxes and self._is_undecided):
                    continue
                try:
                    await step(name, dry_run=dry_run)
                except RelayError as error:
                    self.failed[name] = error
        if not dry_run:
            await self._audit()

    @property
    def _is_undecided(self) -> bool:
        return any(it.undone for it in self.steps)

    async def wait(self) -> None:
        """Wait until workers have read all messages again."""
        for name, ids in self.replays.items():
            replays = PostgresReplays(self.application.context(name).pool.connection)
            for id in ids:
                with bar(f"{name}: replay {id}", "read") as progress:
                    while (found := (await replays.list(1, id))[0])["state"] == "running":
                        progress(found["position"], found["last_position"])
                        await asyncio.sleep(_LOOK_EVERY_S)

    async def _audit(self) -> None:
        for name in self.names:
            done = [f"{it.step}: {it.text}" for it in self.steps if it.context == name and not it.undone]
            if done and name not in self.failed:
                async with self.application.context(name).pool.connection() as conn, conn.transaction():
                    await audit(conn, "context.restore", done, self.by)

    def _did(self, name: str, step: str, count: int | None, text: str, *, undone: bool = False) -> None:
        if count != 0:
            self.steps.append(Step(context=name, step=step, count=count, text=text, undone=undone))

    async def _streams(self, name: str, *, dry_run: bool) -> None:
        settings = self.application.settings
        streams, consumers = settings.streams(name), settings.consumers(name)
        async with jetstream(settings) as js:
            missing = [it.name for it in await topology.diff(js, streams, consumers) if it.missing]
            if missing and not dry_run:
                await topology.ensure(js, streams, consumers)
        self._did(name, "make streams and consumers", len(missing), ", ".join(missing))

    async def _numbers(self, name: str, *, dry_run: bool) -> None:
        source = self.application.context(name).pool.connection
        names = await (sequences_behind(source) if dry_run else mend_sequences(name, source, lambda _: None))
        self._did(name, "set sequences forward", len(names), ", ".join(names))

    async def _lost(self, name: str, *, dry_run: bool) -> None:
        with bar(f"{name}: streams", "messages") as progress:
            reconcile = self.application.context(name).reconcile
            reports = await reconcile.everything(repair=not dry_run, progress=progress)
        for it in reports:
            if not it.exists and dry_run:  # it will be made, and then lacks all
                self._did(name, "publish again", None, f"what {it.stream} had")
            self._did(name, "publish again", it.lost, f"lost by {it.stream}")

    async def _decide(self, name: str, *, dry_run: bool) -> None:
        deciding = self.application.deciding_orphans(name)
        for stream in await self.application.orphans(name).streams():
            act = {Unknown.REPORT: deciding.report, Unknown.REMOVE: deciding.remove}.get(
                self.unknown or Unknown.ADOPT, deciding.adopt
            )
            until = None if self.counted is None else self.counted.get((name, stream), 0)
            undecided = self.unknown is None
            found: DecidedOrphans = await act(stream, self.by, dry_run=dry_run or undecided, until=until)
            self.places[name, stream] = found.last
            text = f"events that only {stream} has"
            count = found.done + len(found.refused)
            self._did(name, self.unknown or "decide: --unknown", count, text, undone=undecided)
            refused = "cannot be adopted; --unknown report tells consumers"
            self._did(name, "left", len(found.refused), refused, undone=not undecided)

    async def _inboxes(self, name: str, *, dry_run: bool) -> None:
        context = self.application.context(name)
        for subscription in context.settings.subscriptions:
            missing, since = 0, self.since
            with bar(f"{name}: inbox of {subscription}", "messages") as progress, suppress(ConsumerMissing):
                found = await self.application.find_missing(name, subscription, None).run(progress=progress)
                missing = len(found.missing)
                since = min((it for it in (self.since, found.since) if it is not None), default=None)
            if since is None:
                continue
            text = f"into the inbox of {subscription}, since {since:%Y-%m-%d %H:%M:%S}Z"
            self._did(name, "read again", missing or None, text)
            if not dry_run:
                await self._replay(name, subscription, since - _SLACK)

    async def _replay(self, name: str, subscription: str, since: datetime) -> None:
        replays = PostgresReplays(self.application.context(name).pool.connection)
        asked = {"until": None, "key": None, "event_type": None, "again": False, "rate": _RATE}
        try:
            id = await replays.start(subscription, self.by, since=since, **asked)
        except ReplayRunning:
            running = [it["id"] for it in await replays.list(100) if it["subscription"] == subscription]
            id = running[0]
        self.replays.setdefault(name, []).append(id)


async def check(application: Application, names: Sequence[str], failed: dict[str, RelayError]) -> Sequence[Part]:
    """Compare everything in these contexts; notes those that cannot be read."""
    parts: list[Part] = []
    for name in names:
        try:
            with bar(f"{name}: balance", "messages") as progress:
                parts += await application.balance(name).run(progress)
        except RelayError as error:
            failed[name] = error
    return parts


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Application]:
    """Lend the parts of an application for one command."""
    application = Application(settings, role="cli")
    await application.start()
    try:
        yield application
    finally:
        await application.stop()
