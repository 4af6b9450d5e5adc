"""The commands of `python -m ragged_moe`, a file each, named after the group that has it.

They import everything; nothing but `ragged_moe.__main__` imports them.
"""
