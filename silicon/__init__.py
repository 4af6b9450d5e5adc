"""What runs on real GPUs, and what they recorded.

README.md has every command, its GPU, and which test, model constant or page each recording holds up. What measures
needs Python, NumPy and libcuda.so.1 only: whatever else such a program imports (the emulator, CuTe DSL, torch) it
imports in functions that run elsewhere. silicon imports emulated_gpu, ragged_moe and submission, and nothing of
evaluation; the tests and evaluation's runs on a rented machine import silicon; emulated_gpu, ragged_moe, submission and
the judge never do.
"""
