"""The contest entry on a Hopper GPU, as far as one can run it, and its host code on a CPU.

h200_loads.py times the kernel's loads and stores, h200_real.py runs custom_kernel, host_path.py times a call's CPU.
"""
