"""Spans of OpenTelemetry: `names` has their names, `listener` makes them of facts, `provider` sends them."""
