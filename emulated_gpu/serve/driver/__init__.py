"""CUDA's driver and runtime for Python and C: modules, launches, `cuda.bindings`, events.

Who calls it are the other rooms of serve.
"""
