"""The functions of the two subscriptions beside those of the sources: ``handler = "python:chaos.readers"``.

Both accept everything, and note it in the transaction of the inbox row.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from chaos.deployment import AUDIT, TWIN
from chaos.history import Source
from consumer.handlers import IncomingEvent, handles

_NOTE: Final = "INSERT INTO chaos_beside (subscription, message_id) VALUES (%s, %s)"


@handles(Source.PYTHON.value, subscription=AUDIT)
def audit(event: IncomingEvent, connection: psycopg.Connection[Any]) -> None:
    """Note that a message of a source came here, too."""
    connection.execute(_NOTE, [AUDIT, event.message_id])


@handles(Source.PYTHON.value, subscription=TWIN)
def twin(event: IncomingEvent, connection: psycopg.Connection[Any]) -> None:
    """Note that a message with the id of another one came."""
    connection.execute(_NOTE, [TWIN, event.message_id])
