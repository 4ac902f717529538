"""The steps of `relay context rename` and `remove`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nats.js import JetStreamContext

from relay.adapters.jetstream import topology
from relay.adapters.jetstream.leftovers import Leftover, left_of
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.postgres.closing import PostgresClosing
from relay.adapters.postgres.ledger import PostgresLedger
from relay.adapters.postgres.row_operations import audit
from relay.bootstrap import Application
from relay.cli.options import ask
from relay.cli.restoring import RestoreStep
from relay.credentials import jetstream
from relay.domain.errors import InvalidRequest, NotMovable
from relay.domain.identity import MSG_ID
from relay.domain.members import State
from relay.domain.operators import Operator
from relay.domain.topology import ConsumerSpec
from relay.settings import Settings

#: How many dead letters are copied at a time. They have the messages in them.
_LETTERS: Final = 200


def declared(settings: Settings) -> tuple[Collection[str], Collection[tuple[str, str]]]:
    """The streams and consumers that relay.toml names, which are no leftovers."""
    consumers = {(it.stream, it.durable) for it in settings.consumers()}
    return {it.name for it in settings.streams()} | {stream for stream, _ in consumers}, consumers


async def leftovers(settings: Settings, name: str) -> Sequence[Leftover]:
    """What is left of a context that relay.toml does not name. Raises InvalidRequest if it does."""
    if name in settings.contexts:
        raise InvalidRequest(f"relay.toml has the context {name}", hint="stop its processes, then take it out")
    async with jetstream(settings) as js:
        return await left_of(js, name, *declared(settings))


def check_renaming(settings: Settings, old: str, new: str) -> None:
    """Raises InvalidRequest and NotMovable if a context cannot have another name now."""
    if old in settings.contexts:
        raise InvalidRequest(f"relay.toml has the context {old}", hint="give it its new name there first")
    found = settings.contexts[new]
    if what := ask(found.database, lambda source: PostgresClosing(source).binds(found.payload_limit)):
        raise NotMovable(f"its {what} name the context that holds them", hint="keep the name")


async def check_stopped(application: Application, context: str | None = None) -> None:
    """Raises NotMovable if processes run; with ``context``, only if they say that they serve it."""
    gone = {it.id for it in await application.members.gone()}
    alive = [it.member for it in await application.members.all() if it.state is not State.LOST]
    for it in alive:
        if it.id not in gone and (context is None or context in it.listens):
            raise NotMovable(f"{it.kind} {it.pid} on {it.host} runs", hint="stop all processes first")


@dataclass(slots=True, kw_only=True)
class Rename:
    """Moves what belongs to a context's old name to its new one. Each step does what is left to do."""

    application: Application
    old: str
    new: str
    by: Operator
    steps: list[RestoreStep] = field(default_factory=list)

    async def run(self, *, dry_run: bool) -> Sequence[Leftover]:
        """Do all steps; returns what stays under the old name."""
        settings = self.application.settings
        if not dry_run:
            await check_stopped(self.application)
        async with jetstream(settings) as js:
            left = await left_of(js, self.old, *declared(settings))
            await self._topology(js, left, dry_run=dry_run)
            for it in left:
                if it.letters:
                    await self._copy_letters(js, it, dry_run=dry_run)
                elif it.durable is None:
                    await self._publish_unread(it, dry_run=dry_run)
        if not dry_run and self.steps:
            done = [f"{it.step}: {it.text}" for it in self.steps]
            by = replace(self.by, about={"from": self.old})
            async with self.application.context(self.new).pool.connection() as conn, conn.transaction():
                await audit(conn, "context.rename", done, by)
        return left

    def _did(self, step: str, count: int, text: str) -> None:
        if count:
            self.steps.append(RestoreStep(context=self.new, step=step, count=count, text=text))

    async def _topology(self, js: JetStreamContext, left: Sequence[Leftover], *, dry_run: bool) -> None:
        """Make what is missing, for all contexts. A consumer that begins "now" begins where the old one stood."""
        settings = self.application.settings
        streams, consumers = settings.streams(), settings.consumers()
        missing = {it.name for it in await topology.diff(js, streams, consumers) if it.missing}
        self._did("make streams and consumers", len(missing), ", ".join(sorted(missing)))
        if dry_run or not missing:
            return
        await topology.ensure(js, streams, [])
        for spec in consumers:
            place = await self._place(js, spec, left) if topology.full_name(spec) in missing else None
            await (topology.make_at(js, spec, place) if place else topology.ensure(js, [], [spec]))

    async def _place(self, js: JetStreamContext, spec: ConsumerSpec, left: Sequence[Leftover]) -> int | None:
        former = f"{self.old}{spec.durable.removeprefix(self.new)}"
        if spec.start_at != "now" or not any((it.stream, it.durable) == (spec.stream, former) for it in left):
            return None
        info = await topology.find_consumer(js, spec.stream, former)
        return None if info is None or info.ack_floor is None else info.ack_floor.stream_seq + 1

    async def _publish_unread(self, left: Leftover, *, dry_run: bool) -> None:
        """Have events published to the new stream that somebody has not read from the old one, in their order."""
        ledger = PostgresLedger(self.application.context(self.new).pool)
        state = await NatsStreamAuditor(self.application.nats).state(left.stream)
        if state is None:
            return
        _, before = await ledger.highest(left.stream)
        unread = replace(state, last_seq=left.read_up_to)
        found = await ledger.beyond(left.stream, unread, before, republish=not dry_run)
        self._did("publish again", found.count, f"unread in {left.stream}")

    async def _copy_letters(self, js: JetStreamContext, left: Leftover, *, dry_run: bool) -> None:
        """Copy dead letters into the stream of the new name, those that it has not."""
        auditor = NatsStreamAuditor(self.application.nats)
        dlq = self.application.settings.contexts[self.new].dlq.name
        there, here = await auditor.state(left.stream), await auditor.state(dlq)
        known: set[Any] = set()
        if here is not None and here.last_seq:
            known = {it.msg_id for it in await auditor.stored(dlq, here.first_seq, here.last_seq)}
        count = 0
        for first in range(there.first_seq, there.last_seq + 1, _LETTERS) if there else ():
            for it in await auditor.held(left.stream, first, first + _LETTERS - 1, f"{self.old}.>"):
                if it.headers.get(MSG_ID) in known:
                    continue
                count += 1
                if not dry_run:
                    subject = f"{self.new}{it.subject.removeprefix(self.old)}"
                    await js.publish(subject, it.body, stream=dlq, headers=dict(it.headers))
        self._did("copy dead letters", count, f"of {left.stream}")
