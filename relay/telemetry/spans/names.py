"""The names of spans and of their attributes: OpenTelemetry's semantic conventions for messaging, version 1.38.

The conventions are not stable yet, so no other module names them.
"""

from __future__ import annotations

from typing import Final

#: The instrumentation scope of all our spans.
SCOPE: Final = "jetrelay"

#: Operations: the beginning of a span's name, and its attribute.
CREATE: Final = "create"
SEND: Final = "send"
RECEIVE: Final = "receive"
PROCESS: Final = "process"
#: The beginning of the name for an attempt at a cron job. It is no operation on messages, so it is no attribute.
RUN: Final = "run"

SYSTEM: Final = "messaging.system"
NATS: Final = "nats"
#: Tasks travel through our own table; the conventions have no name for it.
TASKS: Final = "jetrelay"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
BATCH_SIZE: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
SERVICE_NAME: Final = "service.name"

#: Attributes of our own: no convention has them.
CONTEXT: Final = "jetrelay.context"
JOB: Final = "jetrelay.job"
ATTEMPT: Final = "jetrelay.attempt"
VERDICT: Final = "jetrelay.verdict"
