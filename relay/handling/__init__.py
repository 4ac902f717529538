"""How Python functions are called, as handlers of events and of tasks: signatures, threads, transactions."""
