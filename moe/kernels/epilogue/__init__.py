"""Epilogues write a work tile's sums to global memory: a file an output, a class an accumulator layout."""
