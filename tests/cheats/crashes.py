"""Is ended by a segmentation fault."""
# kind: hangs and crashes
# caught: crash during result: .*SIGSEGV

import os
import signal


def custom_kernel(data):
    os.kill(os.getpid(), signal.SIGSEGV)
