"""Whole kernels against the timing model: measured on an H200 here, or published for a B200.

hopper.py compiles, times and models CUTLASS's examples and kernels of this repository; published.py models others'.
"""
