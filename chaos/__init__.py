"""``relay chaos``: a seeded workload under seeded faults, and a judge of the result (DESIGN §9)."""
