"""Whether the servers are as the promises need them (docs/explanation/guarantees.md).

`examining` asks the servers. Each check is a function from what they said to findings, and changes nothing.
`CHECKS` of a module are those of `relay health`, `CLOSE_CHECKS` those that `relay doctor` makes besides.
"""
