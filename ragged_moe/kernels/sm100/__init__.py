"""Mainloops for Blackwell: they scale and add what an MMA warp multiplies into tensor memory.

A file by how many tokens an expert has.
"""
