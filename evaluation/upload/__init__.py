"""Finds what popcorn, the bot or its automatic review would refuse, before a submission is uploaded.

check.py is the entrance; findings.py names the public source of each rule."""
