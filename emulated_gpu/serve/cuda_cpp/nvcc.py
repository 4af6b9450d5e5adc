"""Calls nvcc as its own arguments say, but for PTX alone, uncompressed and with lines: what the emulated device runs.

    python nvcc.py NVCC ARGUMENT...

ptxas looks at the PTX and makes no machine code, so a build takes less time than for a GPU, and what is refused only
then is not refused here. A file is compiled with the headers of light/ if that is enough for it (light_first.sh).

Who asks for a cubin gets it, and beside it the PTX is kept by which the emulated device knows it. Device code of
several files that belongs together stays PTX, which the emulated device joins (ptx/joined.py).
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CUBIN = {"-cubin", "--cubin"}
OUTPUT = ("-o", "--output-file")
SOURCE, OBJECT = re.compile(r"[^-].*\.(cu|cpp|cc|cxx|c)"), re.compile(r"[^-].*\.(o|a)")
RELOCATABLE = re.compile(r"(-rdc|--relocatable-device-code)=true")
DEVICE_LINK = {"-dlink", "--device-link"}
COMPILE = re.compile("-(c|dc|dw|ptx|cubin|fatbin|E)|--(compile|device-c|device-w|ptx|cubin|fatbin|preprocess)")
TARGET = re.compile(r"--?(arch|gencode|code|gpu-architecture|generate-code|gpu-code)(=.*)?")
# nvcc's linker takes no longer name of an architecture. Of a virtual one it links nothing, and lets the program
# register what PTX there is; the device's library would be of another architecture
FOR_LINK = ("-gencode=arch=compute_90,code=compute_90", "-Xnvlink=--suppress-arch-warning", "--cudadevrt=none")


def for_ptx(arguments: list[str]) -> list[str]:
    """Return the arguments with every real architecture made a virtual one: sm_100a becomes compute_100a.

    Of a virtual one alone nvcc drops the letter at its end, so that it is said twice.
    """
    text = [re.sub(r"\bsm_(\w+)", r"compute_\1", a) if re.search(r"arch|code|^sm_", a) else a for a in arguments]
    text = [re.sub(r"code=\[?([\w,]+)\]?", lambda m: f"code={m[1].split(',')[0]}", a) for a in text]
    if not any(re.match("--?(gpu-)?code", a) for a in text):
        text += [f"-code={a}" for a in re.findall(r"--?(?:arch|gpu-architecture)[= ](compute_\w+)", " ".join(text))[:1]]
    return ["--no-compress", "-lineinfo", *text]


def links(arguments: list[str]) -> bool:
    """Return whether nvcc is to link device code of several files."""
    if DEVICE_LINK & {*arguments}:
        return True
    sources, objects = (sum(bool(kind.fullmatch(one)) for one in arguments) for kind in (SOURCE, OBJECT))
    relocatable = any(RELOCATABLE.fullmatch(one) for one in arguments)
    return not any(COMPILE.fullmatch(one) for one in arguments) and (objects > 0 or relocatable and sources > 1)


def without(arguments: list[str], option: re.Pattern) -> list[str]:
    """Return the arguments without an option, whose value stands behind it if its second group is empty."""
    found = [option.fullmatch(one) for one in arguments]
    before = [is_one and not is_one[2] for is_one in (None, *found)]
    return [one for one, is_one, is_value in zip(arguments, found, before) if not is_one and not is_value]


def link(nvcc: str, arguments: list[str]) -> int:
    """Compile the sources among the arguments, then link; returns nvcc's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        if any(SOURCE.fullmatch(one) for one in arguments):
            compiled = without(arguments, re.compile("(-o|--output-file)()"))
            compiled = [one for one in compiled if not OBJECT.fullmatch(one)]
            if status := subprocess.run([nvcc, *for_ptx(compiled), "-dc", "-odir", folder]).returncode:
                return status
        objects = sorted(str(one) for one in Path(folder).glob("*.o"))
        given = without(without(arguments, TARGET), re.compile("(-x)()"))
        given = [one for one in given if not SOURCE.fullmatch(one) and not RELOCATABLE.fullmatch(one)]
        return subprocess.run([nvcc, *FOR_LINK, *objects, *given]).returncode


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
    if links(sys.argv[2:]):
        sys.exit(link(sys.argv[1], sys.argv[2:]))
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "light_first.sh")
    os.execv("/bin/sh", ["sh", script, sys.argv[1], *for_ptx(sys.argv[2:])])
