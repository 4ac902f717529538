"""Adapters (SDS-047 §8): the ports on PostgreSQL, JetStream, Redis and HTTP. They take plain arguments."""
