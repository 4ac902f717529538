"""Measurements. Figures depend on the machine, so what counts are ratios within one run."""
