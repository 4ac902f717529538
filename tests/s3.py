"""A server that speaks like S3, in this process, and stores for tests in buckets of their own."""

from __future__ import annotations

import itertools
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relay.adapters.coldstore import BucketStore

_numbers = itertools.count(1)


class Buckets:
    """The server at ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint": self.url, "region": "us-east-1", "access_key_id": "ann", "secret_access_key": "secret"}

    def create(self) -> str:
        """Create a bucket; returns its name."""
        name = f"cold-{next(_numbers)}"
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")):
            return name

    def encryption(self, bucket: str, name: str) -> str:
        """How an object is encrypted where it lies."""
        import boto3

        access = {"aws_access_key_id": "ann", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        client: Any = boto3.client("s3", endpoint_url=self.url, **access)
        return str(client.head_object(Bucket=bucket, Key=f"relay/prod/{name}").get("ServerSideEncryption"))

    def store(self, bucket: str, **options: str) -> BucketStore:
        return BucketStore(f"s3://{bucket}/relay/prod", {**self.options, **options})


@contextmanager
def serving() -> Iterator[Buckets]:
    """Run the server."""
    from moto.server import ThreadedMotoServer  # takes half a second, which only few tests need

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield Buckets(f"http://{host}:{port}")
    server.stop()
