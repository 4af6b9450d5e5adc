"""LLVM: what writes its text, loops over arrays, and the order of events, which state asks.

Imports nothing of the emulator.
"""
