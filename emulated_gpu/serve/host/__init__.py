"""What the rooms of serve rest on: hooks after imports, entry points of libraries, a heartbeat, findings for tools.

Imports nothing of the other rooms.
"""
