"""LLVM: what writes its text, rules that are run and compiled, and the order of events, which state asks.

Imports nothing of the emulator but where machine code is kept.
"""
