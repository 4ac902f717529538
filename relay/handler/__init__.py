"""For handler services: the handler contract as one dependency, with effects exactly once.

    endpoint = HandlerEndpoint("vibe-search", engine, {"vibe_created.v1": VibeCreated}, secret=SECRET)

    @app.post("/handle")
    async def handle(event: Annotated[Received[VibeCreated, AsyncSession], endpoint.dependency()]) -> None:
        event.session.add(Entry(title=event.payload.title))

Needs FastAPI or Starlette: ``pip install 'jetrelay[handler]'``. See docs/how-to/http-handlers.md.
"""

from relay.adapters.postgres.processed_events import processed_events_table, prune
from relay.domain.errors import AlreadyProcessed, DomainError, MissingExtraError, Poison
from relay.domain.policies import KEEP
from relay.domain.retry import RetryLater

try:
    import starlette as _starlette  # noqa: F401 - optional
except ImportError as _error:
    raise MissingExtraError("starlette is not installed", hint="pip install 'jetrelay[handler]'") from _error

from relay.handler.contract import Call
from relay.handler.endpoint import HandlerEndpoint, Received

__all__ = [
    "KEEP",
    "AlreadyProcessed",
    "Call",
    "DomainError",
    "HandlerEndpoint",
    "Poison",
    "Received",
    "RetryLater",
    "processed_events_table",
    "prune",
]
