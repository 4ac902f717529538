"""What operators ask the whole system, as queries whose answers are values: commands and consoles show them.

`relay.ops.queries` has the bus that answers them.
"""
