"""Never returns."""
# kind: hangs and crashes
# caught: hang: no result within

import time


def custom_kernel(data):
    while True:
        time.sleep(1)
