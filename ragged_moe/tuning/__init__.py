"""Which kernel and which config a problem runs on.

back_ends.py has the table of kernels and their roles; a file a GPU has the configs and the choice among them.
"""
