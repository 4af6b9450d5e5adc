"""What `python eval.py` does for people: judge (with the threat model), check, model times, talk as the bot does."""
