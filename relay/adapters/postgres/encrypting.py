"""Encrypts personal values of events and tasks just before their rows are written, in the caller's transaction.

The key of a person is read, or made, by the same connection: a new key commits with the first event that needs it.
No key is kept between two calls, so an event of a person who was forgotten never uses the destroyed key.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias
from uuid import UUID, uuid4

from relay.adapters.postgres import array
from relay.adapters.postgres.enqueue import Row, in_schema
from relay.adapters.postgres.row_texts import RowText
from relay.domain.errors import WriteConflict
from relay.domain.limits import encode_payload
from relay.domain.personal import Masters, encrypt, places

_Question: TypeAlias = tuple[str, dict[str, RowText]]
_Answer: TypeAlias = Sequence[Sequence[Any]]
_Key: TypeAlias = tuple[UUID, bytes]


def any_personal(rows: Iterable[Row]) -> bool:
    """Whether rows have values to encrypt. Most have none."""
    return any(row.personal is not None for row in rows)


def encrypted(rows: Sequence[Row], ask: Callable[[str, dict[str, RowText]], _Answer]) -> Sequence[Row]:
    """Return rows as they are written. ``ask`` runs a statement and returns its rows.

    Raises MissingExtraError, MasterKeyMissing, PersonalDamaged, WriteConflict and what ``ask`` raises.
    """
    if not any_personal(rows):
        return rows
    steps = _steps(rows)
    try:
        question = next(steps)
        while True:
            question = steps.send(ask(*question))
    except StopIteration as done:
        found: Sequence[Row] = done.value
        return found


async def encrypted_async(
    rows: Sequence[Row], ask: Callable[[str, dict[str, RowText]], Awaitable[_Answer]]
) -> Sequence[Row]:
    """Do the same by an asynchronous connection."""
    if not any_personal(rows):
        return rows
    steps = _steps(rows)
    try:
        question = next(steps)
        while True:
            question = steps.send(await ask(*question))
    except StopIteration as done:
        found: Sequence[Row] = done.value
        return found


def _steps(rows: Sequence[Row]) -> Generator[_Question, _Answer, Sequence[Row]]:
    """Ask for the keys, schema by schema, and return the rows with encrypted payloads."""
    wanted: dict[str | None, dict[str, Masters]] = {}
    for row in rows:
        if row.personal is not None:
            wanted.setdefault(row.schema, {})[row.personal.subject] = row.personal.masters
    keys: dict[tuple[str | None, str], _Key] = {}
    for schema in sorted(wanted, key=str):
        found = yield from _keys(schema, wanted[schema])
        keys |= {(schema, subject): key for subject, key in found.items()}
    return [_encrypted(row, keys) for row in rows]


def _keys(schema: str | None, wanted: dict[str, Masters]) -> Generator[_Question, _Answer, dict[str, _Key]]:
    found = yield from _known(schema, wanted)
    missing = sorted({*wanted} - {*found})
    if not missing:
        return found
    new = _new(missing, wanted)
    made = yield _insert(schema, new)
    found |= {subject: new[subject][0] for (subject,) in made}
    if rest := {subject: wanted[subject] for subject in missing if subject not in found}:
        found |= yield from _known(schema, rest)  # another transaction has just made them
    if len(found) < len(wanted):
        raise WriteConflict(
            "another transaction has just made the key of the same person",
            hint="roll back and run the whole transaction again",
        )
    return found


def _known(schema: str | None, wanted: dict[str, Masters]) -> Generator[_Question, _Answer, dict[str, _Key]]:
    from relay.adapters import aes_gcm  # noqa: PLC0415 - an extra, loaded where a value is encrypted

    subjects = RowText(array.of_texts(sorted(wanted)))
    rows = yield in_schema("personal/known", schema), {"subjects": subjects}
    return {
        subject: (UUID(id), aes_gcm.unwrap(wanted[subject], UUID(id), master, b64decode(wrapped)))
        for subject, id, master, wrapped in rows
    }


def _new(subjects: Sequence[str], wanted: dict[str, Masters]) -> dict[str, tuple[_Key, str, bytes]]:
    from relay.adapters import aes_gcm  # noqa: PLC0415 - see above

    made: dict[str, tuple[_Key, str, bytes]] = {}
    for subject in subjects:
        id, key, masters = uuid4(), aes_gcm.new_key(), wanted[subject]
        made[subject] = (id, key), masters.present, aes_gcm.wrap(masters, id, key)
    return made


def _insert(schema: str | None, new: dict[str, tuple[_Key, str, bytes]]) -> _Question:
    parameters = {
        "ids": array.of_plain([key[0] for key, _, _ in new.values()]),
        "subjects": array.of_texts(new),
        "masters": array.of_texts([master for _, master, _ in new.values()]),
        "wrapped": array.of_bytes([wrapped for _, _, wrapped in new.values()]),
    }
    return in_schema("personal/insert", schema), {name: RowText(it) for name, it in parameters.items()}


def _encrypted(row: Row, keys: dict[tuple[str | None, str], _Key]) -> Row:
    if row.personal is None:
        return row
    from relay.adapters import aes_gcm  # noqa: PLC0415 - see above

    personal, content = row.personal, json.loads(row.payload)
    id, key = keys[row.schema, personal.subject]
    encrypt(places(content, personal.fields), personal.context, id, aes_gcm.encrypting(key))
    return replace(row, payload=encode_payload(content), personal=None)
