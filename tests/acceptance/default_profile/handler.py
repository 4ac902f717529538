from __future__ import annotations

import psycopg
from pydantic import BaseModel

from consumer.handlers import IncomingEvent, handles

TABLES = "CREATE TABLE IF NOT EXISTS effects (id text NOT NULL, what text NOT NULL)"


class Vibe(BaseModel):
    title: str


@handles("vibe_created", version=1)
def index(vibe: Vibe, event: IncomingEvent, connection: psycopg.Connection) -> None:
    connection.execute("INSERT INTO effects (id, what) VALUES (%s, %s)", [str(event.message_id), vibe.title])
