"""The calls that users make: experts, routers, grouped GEMMs, packing of weights.

Each file is a call, or what several calls share.
"""
