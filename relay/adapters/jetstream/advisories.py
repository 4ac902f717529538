"""Messages that JetStream stopped delivering: the advisories that say so, and the messages themselves."""

from __future__ import annotations

import nats.errors
import nats.js.errors

from relay.adapters.jetstream.connection import NatsConnection
from relay.domain.errors import BrokerUnreachable
from relay.ports import Delivery


class StreamReader:
    """Reads single messages from a stream by their sequence."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def get(self, stream: str, seq: int) -> Delivery | None:
        """The message at ``seq``, or None when the stream no longer holds it. Raises BrokerUnreachable.

        The delivery has no reply subject, as nobody waits for its acknowledgement any more.
        """
        client = await self._connection.client()
        try:
            message = await client.jetstream().get_msg(stream, seq)
        except nats.js.errors.NotFoundError:
            return None
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnreachable(f"cannot read the stream: {error}") from error
        headers = {name: str(value) for name, value in (message.headers or {}).items()}
        return Delivery(message.subject or "", "", headers, message.data or b"", stream, seq, 0)
