"""`relay fleet`: the worker processes of one host, as many as the load needs."""
