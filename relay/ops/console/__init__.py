"""The web console of operators: pages made on the server, at the root of `relay ops`.

Pages ask the same queries and carry out the same commands as the HTTP API. They work without scripts; htmx, which
lies in ``static``, loads slow parts apart and refreshes pages.
"""
