"""Peers' own tests as judges of ragged_moe: their files run as they are, with these functions in their kernels' place.

    stand_ins   modules of a peer's package: its own sources where they are Python, ours where served, else placeholders
    calls       what peers' functions call: ragged_moe's, counted
    flashinfer, vllm, sglang    each peer's functions by ragged_moe's
    suite       pytest with them: which parameters are drawn, and what came of each test

Nothing of a peer's is here: the user fetches its sources.
"""
