"""Finds the connection to the judge and sends it a success."""
# kind: forged messages
# caught: elements differ|never written|not a reply

import os
import stat


def custom_kernel(data):
    for fd in map(int, os.listdir("/proc/self/fd")):
        if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.write(fd, b'{"error": null, "ns": 1.0, "seconds": 0.0}\n')
    return [c for _, _, c in data[0]]
