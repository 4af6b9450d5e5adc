"""Returns at once and lets a thread do the work after the clock has stopped."""
# kind: results come late
# caught: never written

import threading
import time

from reference import ref_kernel


def custom_kernel(data):
    def work():
        time.sleep(0.5)
        ref_kernel(data)

    threading.Thread(target=work, daemon=True).start()
    return [c for _, _, c in data[0]]
