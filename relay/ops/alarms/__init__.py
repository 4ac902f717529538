"""The alarms of now, as `relay ops`, `relay alarms` and the scheduler find them; their rules for Prometheus."""
