"""Calls nvcc as its own arguments say, but for PTX alone, uncompressed and with lines: what the emulated device runs.

    python nvcc.py NVCC ARGUMENT...

ptxas looks at the PTX and makes no machine code, so a build takes less time than for a GPU, and what is refused only
then is not refused here. A file is compiled with the headers of light/ if that is enough for it (light_first.sh).

Who asks for a cubin gets it, and beside it the PTX is kept by which the emulated device knows it.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CUBIN = {"-cubin", "--cubin"}
OUTPUT = ("-o", "--output-file")


def for_ptx(arguments: list[str]) -> list[str]:
    """Return the arguments with every real architecture made a virtual one: sm_100a becomes compute_100a.

    Of a virtual one alone nvcc drops the letter at its end, so that it is said twice.
    """
    text = [re.sub(r"\bsm_(\w+)", r"compute_\1", a) if re.search(r"arch|code|^sm_", a) else a for a in arguments]
    text = [re.sub(r"code=\[?([\w,]+)\]?", lambda m: f"code={m[1].split(',')[0]}", a) for a in text]
    if not any(re.match("--?(gpu-)?code", a) for a in text):
        text += [f"-code={a}" for a in re.findall(r"--?(?:arch|gpu-architecture)[= ](compute_\w+)", " ".join(text))[:1]]
    return ["--no-compress", "-lineinfo", *text]


def output(arguments: list[str]) -> str:
    """Return the file that nvcc is told to write: of a cubin, if nothing is said, it has the source's name."""
    source = next((one for one in arguments if one.endswith(".cu")), "")
    named = os.path.basename(source).removesuffix("cu") + "cubin"
    return next((value for name, value in zip(arguments, arguments[1:]) if name in OUTPUT), named)


def make_cubin(nvcc: str, arguments: list[str]) -> int:
    """Make the cubin as asked, then its PTX, and keep that for whoever loads it; returns nvcc's exit status."""
    path = output(arguments)
    if not {*OUTPUT} & {*arguments}:
        arguments = [*arguments, "-o", path]
    if status := subprocess.run([nvcc, *arguments]).returncode:
        return status
    from emulated_gpu.serve.driver import modules

    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.ptx")
        given = ["-ptx" if one in CUBIN else text if one == path else one for one in arguments]
        if status := subprocess.run([nvcc, *for_ptx(given)]).returncode:
            return status
        code = Path(path).read_bytes()
        modules.note_text(code, Path(text).read_text())
    modules.exported(code)
    return 0


if __name__ == "__main__":
    if CUBIN & {*sys.argv}:
        sys.exit(make_cubin(sys.argv[1], sys.argv[2:]))
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "light_first.sh")
    os.execv("/bin/sh", ["sh", script, sys.argv[1], *for_ptx(sys.argv[2:])])
