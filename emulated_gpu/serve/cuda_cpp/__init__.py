"""CUDA C++ without a GPU: nvcc compiles to PTX.

Stand-ins for CUDA's libraries launch it on the emulated device, in this process or in programs of their own.
"""
