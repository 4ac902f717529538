"""Hand-written loops to measure against: what everybody writes first, and what the machine can do at best."""
