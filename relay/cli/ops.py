"""`relay ops`: the web console and the HTTP API for operators."""

from __future__ import annotations

from typing import Annotated

import typer

from relay.domain.errors import MissingExtraError


def ops(
    *,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen at.")] = 8085,
) -> None:
    """Serve the web console and the HTTP API: see what waits and what failed, and decide about it.

    The console is at /, the API below /api/v1 (described by /api/v1/openapi.json), probes at /healthz and /readyz.
    On this machine a user needs no token, unless ops.users of relay.toml names users. From elsewhere every user
    needs one.
    """
    try:
        from relay.ops.api.server import check_address, check_free, serve
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"not installed: {error.name}", hint="pip install 'jetrelay[ops]'") from None
    from relay.settings import load_settings
    from relay.telemetry.logs import configure

    settings = load_settings()
    check_address(settings, host)
    check_free(host, port)
    configure(settings.log_level, settings.log_format)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"console {address}/\nAPI     {address}/api/v1/openapi.json", flush=True)
    serve(settings, host, port)
