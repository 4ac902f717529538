"""A server that speaks like AWS KMS, in this process, and keys of it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relay.adapters.aws_kms import BOUND

REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "ann", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": REGION}


class KeyServer:
    """The server at ``url``. ``key``: a key of it."""

    def __init__(self, url: str) -> None:
        import boto3

        access = {"aws_access_key_id": "ann", "aws_secret_access_key": "secret", "region_name": REGION}
        self.url, self.client = url, boto3.client("kms", endpoint_url=url, **access)
        self.key: str = self.client.create_key()["KeyMetadata"]["KeyId"]

    def sealed(self, name: str) -> str:
        """A new master key, as the settings have it."""
        made: Any = self.client.generate_data_key_without_plaintext(
            KeyId=self.key, KeySpec="AES_256", EncryptionContext={BOUND: name}
        )
        return base64.b64encode(made["CiphertextBlob"]).decode()

    def settings(self, name: str, url: str | None = None) -> dict[str, str]:
        """The table of a master key in relay.toml."""
        return {"kms": self.key, "sealed": self.sealed(name), "endpoint": url or self.url, "region": REGION}


@contextmanager
def serving(port: int = 0) -> Iterator[KeyServer]:
    """Run the server."""
    from moto.server import ThreadedMotoServer  # takes half a second, which only few tests need

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    host, bound = server.get_host_and_port()
    yield KeyServer(f"http://{host}:{bound}")
    server.stop()
