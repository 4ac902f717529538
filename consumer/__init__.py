"""The inbound side: JetStream → inbox → handler. A leaf package: it imports only ``relay``."""
