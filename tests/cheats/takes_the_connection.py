"""Sends the judge a success of its own by the connection, and leads what the judge's code sends to nowhere.

The kind is public: https://github.com/gpu-mode/pygpubench/issues/23
"""
# kind: forged messages
# caught: elements differ|never written|not a reply
# benchmark: never written

import json
import os
import stat


def custom_kernel(data):
    results = [
        {"tensor": {"address": c.data_ptr(), "shape": list(c.shape), "stride": list(c.stride()), "offset": 0,
                    "dtype": str(c.dtype), "device": "cuda:0", "bytes": c.untyped_storage().nbytes()}}
        for _, _, c in data[0]
    ]  # fmt: skip
    nowhere = os.open("/dev/null", os.O_RDWR)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.write(fd, json.dumps({"error": None, "returned": {"list": results}}).encode() + b"\n")
            os.dup2(nowhere, fd)
    return [c for _, _, c in data[0]]
