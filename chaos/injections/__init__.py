"""How faults are injected and healed: a context manager each, see `stage.Injection`."""
