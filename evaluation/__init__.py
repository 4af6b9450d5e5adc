"""What `python eval.py` does for people: judge, time and compare submissions. README.md has a map of the rooms."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # of the checkout
