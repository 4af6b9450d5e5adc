"""Mainloops for Hopper: they issue wgmma, and scale and add each k-block in registers.

A file by how many tokens an expert has.
"""
