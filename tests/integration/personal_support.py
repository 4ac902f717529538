"""What tests of personal values share: a master key, an event about a person, and looking for plain bytes."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

from relay import Event, PersonalFields
from relay.adapters import aes_gcm
from relay.domain.personal import Masters, decrypt, encrypted
from tests.integration.publishing import query

MASTERS = Masters("2026", {"2026": bytes(range(32)), "2025": bytes(range(1, 33))})
VARIABLES = {
    "RELAY_PERSONAL__MASTER": "2026",
    **{
        f"RELAY_PERSONAL__MASTERS__{name}__KEY": base64.b64encode(it).decode() for name, it in MASTERS.keys.items()
    },
}
#: What must be found nowhere.
EMAIL, STREET = "ann.secret@example.org", "7 Hidden Lane"
FIELDS = PersonalFields("customer_id", ("email", "address.*"))


def payload(subject: str = "c-7", **more: Any) -> dict[str, Any]:
    return {"customer_id": subject, "email": EMAIL, "address": {"street": STREET, "city": "Ulm"}, **more}


def order(subject: str = "c-7", aggregate: str = "o-1", **values: Any) -> Event:
    values = {"event_type": "order_placed", "aggregate_type": "order", "payload": payload(subject)} | values
    return Event(aggregate_id=aggregate, personal=FIELDS, **values)


def masters() -> dict[str, Any]:
    """The section `personal` of a configuration."""
    found = {name: {"key": base64.b64encode(it).decode()} for name, it in MASTERS.keys.items()}
    return {"master": MASTERS.present, "masters": found}


def keys(url: str) -> list[dict[str, Any]]:
    return query(url, "SELECT * FROM subject_keys ORDER BY created_at, subject")


def opened(url: str, content: Any) -> Any:
    """A payload, decrypted by what the table of keys holds."""
    content = copy.deepcopy(content)
    for place, value in encrypted(content):
        [row] = query(url, "SELECT * FROM subject_keys WHERE id = %s", value.key)
        key = aes_gcm.unwrap(MASTERS, row["id"], row["master"], row["wrapped"])
        decrypt(place, value, aes_gcm.decrypting(key))
    return content


def is_hidden(content: bytes | str | object) -> bool:
    """Whether bytes, a text or JSON show nothing of the person, also in hexadecimal digits."""
    text = content if isinstance(content, str) else json.dumps(content, default=str)
    data = content if isinstance(content, bytes) else text.encode()
    words = [it.encode() for it in (EMAIL, STREET, "Hidden", "ann.secret")]
    return all(word not in data and word.hex().encode() not in data for word in words)


def tables_hide(url: str) -> bool:
    """Whether no row of any table shows anything of the person."""
    names = query(url, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
    rows = [row for it in names for row in query(url, f'SELECT t::text FROM "{it["table_name"]}" AS t')]
    return all(is_hidden(row["t"]) for row in rows)
