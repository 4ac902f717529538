"""The table ``ops``: who may use the HTTP API of `relay ops`, and what for."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, StringConstraints, model_validator

from relay.settings.section import Section

_SHORTEST: Final = 16
_LONGEST: Final = 1_000


def _token(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not (text.isascii() and text.isprintable()) or {*" :"} & {*text}:
        raise ValueError("must be of printable ASCII characters, with no space and no colon")
    if not _SHORTEST <= len(text) <= _LONGEST:
        raise ValueError(f"must be of {_SHORTEST} to {_LONGEST} characters: openssl rand -hex 32 makes one")
    return secret


UserName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._@-]{1,64}$")]


class OpsUser(Section):
    """A user of the API, with a ``token``. The audit log has the user's name beside every action.

    ``role``: ``read`` sees everything but payloads, ``operate`` acts, too. ``payloads``: may see payloads.
    """

    token: Annotated[SecretStr, AfterValidator(_token)]
    role: Literal["read", "operate"] = "read"
    payloads: bool = False


class OpsSettings(Section):
    """Who may use the API of `relay ops`. Without ``users`` it listens on this machine only, and asks nobody."""

    users: dict[UserName, OpsUser] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _distinct(self) -> OpsSettings:
        tokens = [user.token.get_secret_value() for user in self.users.values()]
        if len({*tokens}) < len(tokens):
            raise ValueError("two users have the same token")
        return self
