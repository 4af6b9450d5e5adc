"""Machine code for what warps execute often: the Python of blocks (ptx/control_flow.py), compiled by LLVM.

A handler of an instruction says once, in Python, what it does; translate.py says that in LLVM's assembly."""
