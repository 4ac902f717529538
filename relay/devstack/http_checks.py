"""Ask nats-server's monitoring endpoint and other services over HTTP what runs."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from urllib.parse import urlsplit

from relay.devstack.ports import LOOPBACK


def get(url: str) -> bytes | None:
    """Return the body of a 200. None for any other answer, or no answer."""
    parts = urlsplit(url)
    client = http.client.HTTPConnection(parts.hostname or LOOPBACK, parts.port, timeout=2)
    try:
        client.request("GET", f"{parts.path}?{parts.query}")
        response = client.getresponse()
        return response.read() if response.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        client.close()


def connected_clients(monitor_url: str) -> Counter[str]:
    """Count the connections of each client name."""
    answer = get(f"{monitor_url}/connz?limit=1024")
    return Counter(connection.get("name", "") for connection in json.loads(answer or "{}").get("connections", []))


def pulled_consumers(monitor_url: str) -> set[tuple[str, str]]:
    """Return stream and name of each consumer with a waiting pull request or unacknowledged messages."""
    answer = get(f"{monitor_url}/jsz?streams=true&consumers=true")
    streams = [
        stream
        for account in json.loads(answer or "{}").get("account_details", ())
        for stream in account.get("stream_detail", ())
    ]
    return {
        (stream["name"], consumer["name"])
        for stream in streams
        for consumer in stream.get("consumer_detail", ())
        if consumer.get("num_waiting") or consumer.get("num_ack_pending")
    }
