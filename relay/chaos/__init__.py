"""``relay chaos``: a seeded workload under seeded faults, and a judge of what came of it (DESIGN §9)."""
