"""``make bench``: how fast jetrelay is, as ratios to hand-written loops in the same run on the same servers.

Figures depend on the machine and on what else it does, so what counts are the ratios. `measures` holds one module
for each thing that is measured, `reference` the loops they are measured against.
"""
