"""What a call rests on: the device, sizes, checks of operands, the workspace, padding.

Imports nothing of the other rooms.
"""
