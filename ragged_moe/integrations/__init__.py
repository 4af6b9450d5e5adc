"""These put ragged_moe.experts where models are run.

Each file is of one library, which is imported with it.
"""
