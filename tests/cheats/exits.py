"""Ends its process with success."""
# caught: crash: .*exited with code 0 during result

import os


def custom_kernel(data):
    os._exit(0)
