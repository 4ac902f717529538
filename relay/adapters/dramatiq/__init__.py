"""Dramatiq on Redis: the broker, gates, and how a worker runs what it has fetched."""
