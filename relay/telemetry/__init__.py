"""Listeners for facts. Only this package imports telemetry libraries."""
