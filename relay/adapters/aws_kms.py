"""AWS KMS as a key service, by boto3, which is loaded with this module: import it only where a key is opened."""

from __future__ import annotations

from typing import Any, Final

from relay.domain.errors import KeyServiceUnreachable, MasterKeyMissing, MissingExtraError
from relay.domain.personal import SealedKey

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
    from botocore.exceptions import ConnectionError as NoConnection
except ImportError:
    raise MissingExtraError("boto3 is not installed", hint="pip install 'jetrelay[kms]'") from None

#: The name of the master key is bound to what is sealed by this entry of the encryption context.
BOUND: Final = "relay-master"
#: Two tries of at most two seconds.
_CONFIG: Final[Any] = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2})
_BUSY: Final = {"ThrottlingException", "LimitExceededException", "DependencyTimeoutException"}
_FIRST_FAULT: Final = 500


class AwsKms:
    """The credentials are those that boto3 finds: variables, files, or the role of the machine."""

    def open(self, name: str, sealed: SealedKey) -> bytes:
        """See the port."""
        try:
            client: Any = boto3.client(
                "kms", region_name=sealed.region, endpoint_url=sealed.endpoint, config=_CONFIG
            )
            answer = client.decrypt(
                KeyId=sealed.service_key, CiphertextBlob=sealed.sealed, EncryptionContext={BOUND: name}
            )
        except (HTTPClientError, NoConnection) as error:
            raise KeyServiceUnreachable(f"AWS KMS does not answer: {type(error).__name__}") from error
        except ClientError as error:
            raise _refusal(name, error) from error
        except (BotoCoreError, ValueError) as error:
            raise MasterKeyMissing(
                f"AWS KMS cannot be asked for {name!r}: {type(error).__name__}",
                hint="region and credentials",
            ) from error
        return bytes(answer["Plaintext"])


def _refusal(name: str, error: ClientError) -> KeyServiceUnreachable | MasterKeyMissing:
    answer: Any = error.response
    code = str(answer.get("Error", {}).get("Code", "?"))[:80]
    if code in _BUSY or answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= _FIRST_FAULT:
        return KeyServiceUnreachable(f"AWS KMS does not answer: {code}")
    return MasterKeyMissing(
        f"AWS KMS does not open the master key {name!r}: {code}",
        hint=f"the right kms:Decrypt, the key of `kms`, and the encryption context {BOUND}={name}",
    )
