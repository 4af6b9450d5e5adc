"""CUDA C++ without a GPU: nvcc compiles to PTX, and stand-ins for CUDA's libraries launch it on the emulated device."""
