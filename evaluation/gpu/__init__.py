"""Runs on a machine with a GPU, such as modal_app.py rents, what other machines can only model.

runs.py is the entrance; protocol.py is the bot's side of the contest's grader."""
