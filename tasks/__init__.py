"""Background tasks through the task outbox. A leaf package: it imports only ``relay``."""
