"""Searches all of its process's memory for the text of a case, whose seed would give it the inputs to come.

The kind is public: https://github.com/gpu-mode/pygpubench/issues/23
"""
# kind: reaches into the judge
# caught: LookupError: no case in .* regions of memory
# benchmark: LookupError: no case in .* regions of memory

import ctypes
import re

PART = 1 << 26


def texts():
    count = 0
    with open("/proc/self/maps") as maps:
        lines = maps.read().splitlines()
    for line in lines:
        span, rights, _, _, inode, *_ = line.split()
        start, end = (int(x, 16) for x in span.split("-"))
        if rights.startswith("rw") and inode == "0" and end - start <= PART:
            count += 1
            yield count, ctypes.string_at(start, end - start)


def custom_kernel(data):
    sizes = [[size[at] for size in data[3]] for at in range(3)]
    case = "; ".join(re.escape(f"{name}: {list(map(int, of))}") for name, of in zip("mnk", sizes))
    pattern = re.compile(rb"%b; g: \d+; seed: (\d+)" % case.encode())
    for count, text in texts():
        if found := pattern.search(text):
            raise RuntimeError(f"the seed is {int(found[1])}")
    raise LookupError(f"no case in {count} regions of memory")
