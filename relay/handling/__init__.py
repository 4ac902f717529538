"""How Python functions are called as handlers of events and tasks: signatures, threads, transactions."""
