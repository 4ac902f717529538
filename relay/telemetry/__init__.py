"""Listeners to facts. Telemetry libraries are imported here and nowhere else."""
