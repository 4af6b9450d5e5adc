"""Scripts as several ranks: torch.distributed and symmetric memory between threads of one process.

Rests on torch's device.
"""
