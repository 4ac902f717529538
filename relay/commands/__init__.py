"""Commands (SDS-047 §4), one file each. They take ports and return values."""
