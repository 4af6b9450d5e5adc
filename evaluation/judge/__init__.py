"""Judges a submission that may cheat: inputs, processes that are kept apart, exact results, times, verdicts.

judge.py is the entrance; the threat model is in ../README.md."""
