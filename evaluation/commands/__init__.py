"""The commands of `python eval.py`: options, tables, progress, JSON, and one sentence for bad input.

cli.py is the entrance; every other file serves one command or all of them."""
