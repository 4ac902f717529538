"""What other services may ask (§3.1, sr.queries): a request with one answer, nothing is stored."""

from __future__ import annotations

import psycopg

from relay.bus import Query, QueryBus
from relay.settings import load_settings

queries = QueryBus()


class FindLoop(Query[dict[str, str]]):
    """Find a loop by its id."""

    loop_id: str


@queries.handles(FindLoop, subject="sr.queries.loop.find")
def find_loop(query: FindLoop) -> dict[str, str] | None:
    """Answer with the loop; None if there is none."""
    url = load_settings().contexts["sr"].database_url.get_secret_value()
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT goal FROM loops WHERE id = %s", [query.loop_id]).fetchone()
    return None if found is None else {"loop_id": query.loop_id, "goal": found[0]}
