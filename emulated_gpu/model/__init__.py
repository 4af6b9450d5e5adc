"""How long a launch takes on a machine of which profiles/ has the figures, and what it spends its time on.

The same launches, warps and units run under a clock that predicts."""
