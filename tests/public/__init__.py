"""Public scripts on the emulator: which (cases.py), run each under a limit (__main__.py), recorded (record.json)."""
