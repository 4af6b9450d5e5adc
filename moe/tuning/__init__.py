"""Which kernel and which config a problem runs on: back_ends.py has the table, a file a GPU the measured choices."""
