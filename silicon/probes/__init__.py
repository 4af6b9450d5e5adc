"""Programs that answer one question each about an H200: its clock, its L2, its fences, its tensor core.

Most have a JSON file of the same name beside them; README.md has what came out.
"""
