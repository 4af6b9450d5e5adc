"""Who runs when: events, warps, CTAs and clusters on SMs, launches.

clock.py declares what units and warps ask of a clock; the one here draws its answers from a seed, model/ predicts."""
