"""Who runs when: events, warps, CTAs and clusters on SMs, launches.

clock.py declares what is asked of time; schedule.py draws the answers from a seed, model/ predicts them."""
