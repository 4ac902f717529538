"""Pure values and rules (SDS-047 §2, §3, §6): standard library only, no I/O, no clock."""
