"""What runs on real GPUs, and what they recorded.

README.md has every command, its GPU, and which test, model constant or page each recording holds up. The programs need
Python, NumPy and libcuda.so.1 where they measure; whatever else they import (the emulator, CuTe DSL, torch) is imported
inside the functions that run elsewhere. silicon imports emulator, moe and submission, and nothing of evaluation;
evaluation.runs and the tests import silicon; emulator, moe and submission never do.
"""
