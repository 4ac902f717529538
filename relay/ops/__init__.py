"""The questions of operators about the whole system, as queries whose answers are values.

`relay.ops.queries` has the bus that answers them.
"""
