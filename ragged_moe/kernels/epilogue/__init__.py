"""Epilogues write a work tile's sums to global memory.

A file an output, a class an accumulator layout.
"""
