"""The clock of a fleet: ticks that enqueue jobs. A leaf package: it imports only ``relay``."""
