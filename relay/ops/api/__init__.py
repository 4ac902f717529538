"""The HTTP API of operators, at `/api/v1`: the queries and commands of `relay.ops` for programs and consoles.

`relay ops` serves it. It needs the extra ``ops``.
"""
