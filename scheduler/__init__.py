"""The clock of a fleet: its ticks enqueue jobs. A leaf package: it imports only ``relay``."""
