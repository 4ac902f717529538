"""Forgets a person in all contexts at once, and tells the certificate of it.

What is destroyed, when and by whom stands in the tables of keys and in the audit logs: the certificate is read
from there, so it can be had again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.adapters.postgres.subject_keys import DestroyedKey, PostgresSubjectKeys
from relay.bus import Command, CommandBus, Query, QueryBus
from relay.domain.errors import InvalidRequest, of_context
from relay.domain.operators import Operator
from relay.domain.personal import MAX_SUBJECT_BYTES
from relay.ops.everywhere import PATIENCE_S, everywhere
from relay.ops.handlers import Sources
from relay.settings import ContextSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonCertificate:
    """The destroyed keys of a person by context. ``left``: how many are not. ``unread``: who did not answer."""

    subject: str
    keys: Mapping[str, Sequence[DestroyedKey]]
    left: Mapping[str, int]
    unread: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Whether nobody can read a value of the person any more."""
        return not self.unread and not any(self.left.values())

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        contexts = [
            {
                "context": name,
                "already": bool(keys) and all(it.already for it in keys),
                "keys": [
                    {
                        "id": it.id,
                        "made": it.created_at,
                        "destroyed": it.forgotten_at,
                        "by": it.by,
                        "deed": it.deed,
                    }
                    for it in keys
                ],
                "left": self.left.get(name, 0),
            }
            for name, keys in self.keys.items()
        ]
        return {"subject": self.subject, "complete": self.complete, "contexts": contexts, "unread": self.unread}


class ReadCertificate(Query[PersonCertificate]):
    """What is destroyed of a person, and what is not. Raises InvalidRequest for what can be no person."""

    subject: str


class ForgetPerson(Command[PersonCertificate]):
    """Destroy all keys of a person, in every context or in one. Again it changes nothing.

    Raises UnknownContext, and InvalidRequest for what can be no person.
    """

    subject: str
    context: str | None = None
    by: Operator


class Forgetting:
    """Carries out `ForgetPerson` and answers `ReadCertificate`. ``patience``: how long a database may take."""

    def __init__(
        self, contexts: Mapping[str, ContextSettings], sources: Sources, patience: float = PATIENCE_S
    ) -> None:
        self._contexts, self._sources, self._patience = contexts, sources, patience

    def answer(self, bus: QueryBus) -> QueryBus:
        """Register with the bus of questions; returns it."""
        bus.handles(ReadCertificate)(self.read)
        return bus

    def carry_out(self, bus: CommandBus) -> CommandBus:
        """Register with the bus of commands; returns it."""
        bus.handles(ForgetPerson)(self.forget)
        return bus

    async def read(self, asked: ReadCertificate) -> PersonCertificate:
        """See the query."""
        check_person(asked.subject)

        async def one(name: str) -> tuple[Sequence[DestroyedKey], int]:
            async with self._sources(self._contexts[name]) as source:
                return await PostgresSubjectKeys(source).of(asked.subject)

        found = await everywhere(self._contexts, one, self._patience)
        return PersonCertificate(
            subject=asked.subject,
            keys={name: keys for name, (keys, _) in found.answers.items()},
            left={name: left for name, (_, left) in found.answers.items()},
            unread=found.unread,
        )

    async def forget(self, asked: ForgetPerson) -> PersonCertificate:
        """See the command."""
        check_person(asked.subject)
        contexts = self._contexts
        if asked.context is not None:
            contexts = {asked.context: of_context(contexts, asked.context)}

        async def one(name: str) -> Sequence[DestroyedKey]:
            async with self._sources(contexts[name]) as source:
                return await PostgresSubjectKeys(source).forget(asked.subject, asked.by)

        done = await everywhere(contexts, one, self._patience)
        return PersonCertificate(subject=asked.subject, keys=done.answers, left={}, unread=done.unread)


def check_person(subject: str) -> None:
    """Raise InvalidRequest for what can be no person."""
    if not subject.strip() or len(subject.encode()) > MAX_SUBJECT_BYTES or "\0" in subject:
        raise InvalidRequest(f"must be 1 to {MAX_SUBJECT_BYTES} bytes", field="subject")
