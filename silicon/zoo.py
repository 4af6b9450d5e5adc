"""Runs the zoo's programs (emulated_gpu/ZOO.md) that a Hopper GPU can run under NVIDIA's compute-sanitizer.

    python3 -m silicon.zoo run [FILE]      on a Hopper GPU, with NumPy, libcuda.so.1 and compute-sanitizer
    python3 -m silicon.zoo one NAME STATE  a program in one of its states, "buggy" or "fixed", as each tool runs it

A program that uses no instruction of the B200 alone is assembled for sm_90a. A tool that has not ended after a minute
has met a hang.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import Gpu, nvidia_smi

TABLE = Path(__file__).with_suffix(".json")
ZOO = Path(__file__).parents[1] / "tests" / "emulated_gpu" / "zoo"
TOOLS, STATES = ("racecheck", "synccheck", "memcheck"), ("buggy", "fixed")
SECONDS, AT_ONCE = 60, 6
WORDS = 256  # of each of the two buffers
FOUND = "Error|Warning|Barrier|Invalid|Program hit"  # how a line begins that says what was found
INT32 = 3  # CUtensorMapDataType

CONTROL = """.version 8.0
.target sm_90a
.address_size 64
// launch: k 1 64
.visible .entry k(.param .u64 out, .param .u64 in)
{
  .reg .b32 lane, other, to, from, x; .reg .b64 o, at; .shared .align 4 .b32 words[64];
  mov.u32 lane, %tid.x; mov.u32 to, words; mad.lo.u32 to, lane, 4, to; st.shared.u32 [to], lane;
  bar.sync 0; // fixed
  xor.b32 other, lane, 32; mov.u32 from, words; mad.lo.u32 from, other, 4, from; ld.shared.u32 x, [from];
  ld.param.u64 o, [out]; mul.wide.u32 at, lane, 4; add.u64 o, o, at; st.global.u32 [o], x;
  ret;
}
"""  # what racecheck is made for: shared memory that another warp reads without a barrier between


def state(text: str, fixed: bool) -> tuple[str, list[list[str]]]:
    """Return a program's PTX in one of its states, and its launches: kernel, grid, block, more."""
    launch = re.findall(r"^// launch when fixed: (.*)", text, re.M) if fixed else []
    launch = launch or re.findall(r"^// launch: (.*)", text, re.M)
    other = "// buggy" if fixed else "// fixed"
    lines = ["" if line.endswith(other) else line for line in text.splitlines()]
    return "\n".join(lines), [one.split() for one in launch[0].split(", ")]


def shared(more: list[str]) -> int:
    """Return the bytes of dynamic shared memory that a launch asks for."""
    return next((int(word.partition("=")[2]) for word in more if word.startswith("shared=")), 0)


def run_program(name: str, which: str) -> None:
    """Run a program once on the GPU of this machine."""
    gpu = Gpu()
    text = CONTROL if name == "control" else (ZOO / f"{name}.ptx").read_text()
    text, launches = state(text, which == "fixed")
    out, source = gpu.allocate(4 * WORDS), gpu.allocate(4 * WORDS)
    for buffer in (out, source):
        gpu.fill(buffer, 0, 4 * WORDS)
    if "map" in launches[0]:
        gpu.write(out, np.frombuffer(gpu.tensormap(source, (16,), (), (16,), dtype=INT32), np.uint8))
    module = gpu.module(text.replace("sm_100a", "sm_90a"))
    for kernel, grid, block, *more in launches:
        size = shared(more)
        made = gpu.kernel(module, kernel, size)
        gpu.launch(made, int(grid), int(block), [out, source], shared=size, pdl="pdl" in more)()
    gpu.sync()


def verdict(name: str, which: str, tool: str) -> list[str]:
    """Return what a tool says of a program: its errors and warnings, each once; a hang; or why it did not run."""
    words = ["compute-sanitizer", "--tool", tool, sys.executable, "-m", "silicon.zoo", "one", name, which]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return [f"had not ended after {SECONDS} s"]
    said = [line.removeprefix("=========").strip() for line in done.stdout.splitlines() if line.startswith("=====")]
    if not any("SUMMARY" in line for line in said):
        return [(done.stderr or done.stdout).strip()[-300:]]
    found = [re.sub(r" *0x[0-9a-f]+", "", line) for line in said if re.match(FOUND, line)]
    return [*list(dict.fromkeys(found))[:5], next(line for line in reversed(said) if "SUMMARY" in line)]


def run_all(file: Path) -> None:
    """Run all programs in both states under all tools and write the file."""
    gpu = Gpu()
    programs = [path.stem for path in sorted(ZOO.glob("*.ptx")) if "tcgen05" not in path.read_text()]
    jobs = [(name, which, tool) for tool in TOOLS for name in ("control", *programs) for which in STATES]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda job: verdict(*job), jobs))
    version = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True).stdout.split("\n")
    lines = {"machine": gpu.describe(), "nvidia-smi": nvidia_smi(), "tool": " ".join(version[-2:]).strip()}
    lines |= {" ".join(job): said for job, said in zip(jobs, found, strict=True)}
    text = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in lines.items())
    file.write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    options = command.parser(__doc__)
    options.add_argument("what", choices=("run", "one"))
    options.add_argument("arguments", nargs="*")
    given = options.parse_args()
    with command.on_gpu():
        if given.what == "one":
            run_program(*given.arguments)
        else:
            run_all(Path(*given.arguments) if given.arguments else TABLE)
