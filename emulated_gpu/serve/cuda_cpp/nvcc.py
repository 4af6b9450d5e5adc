"""Calls nvcc as its own arguments say, but for PTX alone, uncompressed and with lines: what the emulated device runs.

    python nvcc.py NVCC ARGUMENT...

No ptxas runs, so a build takes less time than for a GPU, and what only ptxas refuses is not refused here. A file is
compiled with the headers of light/ if that is enough for it (light_first.sh).
"""

import os
import re
import sys


def for_ptx(arguments: list[str]) -> list[str]:
    """Return the arguments with every real architecture made a virtual one: sm_100a becomes compute_100a."""
    text = [re.sub(r"\bsm_(\w+)", r"compute_\1", a) if re.search(r"arch|code|^sm_", a) else a for a in arguments]
    text = [re.sub(r"code=\[?([\w,]+)\]?", lambda m: f"code={m[1].split(',')[0]}", a) for a in text]
    return ["--no-compress", "-lineinfo", *text]


if __name__ == "__main__":
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "light_first.sh")
    os.execv("/bin/sh", ["sh", script, sys.argv[1], *for_ptx(sys.argv[2:])])
