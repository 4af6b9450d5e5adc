"""The kernels in CuTe DSL: a frame with roles, and what the roles are.

sm90/ and sm100/ have the mainloops, epilogue/ the stores; routing, permute and finalise are launches of their own.
"""
