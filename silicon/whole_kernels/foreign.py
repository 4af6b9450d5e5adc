"""Models kernels that nobody here wrote, of other families than the known ones, beside their published B200 times.

    git clone https://github.com/gau-nernst/learn-cuda
    python -m silicon.whole_kernels.foreign list
    python -m silicon.whole_kernels.foreign model learn-cuda [--only WORD] [--half held-out|open] [--write]
    python -m silicon.whole_kernels.foreign table

No GPU is needed; nvcc is. Each point runs in a process of its own: the kernel's file as it is, with its own host code,
in an extension of torch. `model` prints each point, and with --write keeps it among `strangers` of
emulated_gpu/model/whole_kernels.json, with what its time is made of (emulated_gpu/model/made_of.py). Half of the
kernels are held out, by a hash of their names, before they were run: no figure and no mechanism of the model may be
chosen in sight of their times.

02e_matmul_sm100 (its README.md, commit 1454f8b): BF16, A and B along K, a card of Modal, nvbench, calls in a row on
inputs enough for 10 ms. Modelled: the second of two calls on two inputs, from the end of the first, with a clean L2,
at the clock that the power limit leaves such calls (`sustained_us` of emulated_gpu/model/sm_clock.py; what is kept is
without it). The author says that results vary between runs.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from emulated_gpu.model import uncertainty
from emulated_gpu.model.profile import load
from emulated_gpu.model.sm_clock import sustained_us
from silicon import command

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "emulated_gpu" / "model" / "whole_kernels.json"
AUTHOR = "gau.nernst, BF16 GEMM"
MATMUL = "02e_matmul_sm100"
TFLOPS = {  # kernel -> size of all three dimensions -> as published
    "v1a": {4096: 255.73}, "v1b": {4096: 254.37}, "v2a": {4096: 699.39}, "v2b": {4096: 721.02},
    "v3": {4096: 914.42}, "v4": {4096: 1053.61}, "v5": {4096: 1169.65}, "v6": {4096: 1273.32},
    "v7a": {2048: 930.34, 4096: 1293.38, 8192: 1283.26}, "v7b": {2048: 930.19, 4096: 1316.16, 8192: 1238.74},
    "v7c": {2048: 955.32, 4096: 1326.11, 8192: 1246.06},
}  # fmt: skip


@dataclass(frozen=True)
class Foreign:
    """A kernel of learn-cuda on matrices of `size` x `size`, and its time in microseconds, as published."""

    kernel: str
    size: int
    us: float

    @property
    def name(self) -> str:
        return f"{MATMUL} {self.kernel}, {self.size}"

    @property
    def row(self) -> dict:
        """The beginning of its row among `strangers`."""
        kernel = f"{MATMUL} {self.kernel}"
        return {"author": AUTHOR, "kernel": kernel, "size": self.size, "published_us": round(self.us, 2)}

    @property
    def held_out(self) -> bool:
        """By the kernel's name: all its sizes belong to one half."""
        return hashlib.sha256(f"{MATMUL} {self.kernel}".encode()).digest()[0] % 2 == 0

    @property
    def half(self) -> str:
        return "held-out" if self.held_out else "open"


POINTS = [
    Foreign(kernel, size, 2 * size**3 / tflops / 1e6)
    for kernel, sizes in TFLOPS.items()
    for size, tflops in sizes.items()
]


def child(checkout: str, kernel: str, size: int) -> None:
    """Prints the second call's time and what it is made of, as JSON; runs in a process of its own."""
    import emulated_gpu
    from emulated_gpu.device import DEVICE
    from emulated_gpu.model.made_of import made_of
    from emulated_gpu.model.run import TimedRun
    from emulated_gpu.model.tally import tallied
    from emulated_gpu.serve import run

    run.install()
    import torch
    from torch.utils.cpp_extension import load_inline

    folder = Path(checkout) / MATMUL
    source = (folder / f"matmul_{kernel[:2]}.cu").read_text()
    source += f"""
void call(int64_t a, int64_t b, int64_t c, int64_t n) {{
  matmul_{kernel}((const nv_bfloat16 *)a, (const nv_bfloat16 *)b, (nv_bfloat16 *)c, (int)n, (int)n, (int)n);
}}
"""
    module = load_inline(
        f"foreign_{kernel}",
        cpp_sources="void call(int64_t a, int64_t b, int64_t c, int64_t n);",
        cuda_sources=source,
        functions=["call"],
        extra_cuda_cflags=["-O3", f"-I{folder}", "-gencode=arch=compute_100a,code=sm_100a"],
        extra_ldflags=["-lcuda"],
    )
    profile = load("b200").with_({"l2.dirty_at_start": 0.0})
    matrices = [[torch.zeros(size, size, dtype=torch.bfloat16, device="cuda") for _ in "abc"] for _ in range(2)]

    with emulated_gpu.session() as session:
        session.recorded = []
        for a, b, c in matrices:
            module.call(a.data_ptr(), b.data_ptr(), c.data_ptr(), size)
        timed = TimedRun(profile, DEVICE.memory, session.recorded)
        for launch in timed.launches:
            tallied(launch.launch)
        timed.run()
    first, second = timed.ends_us()
    shares = made_of(timed, 1)
    print(json.dumps({"us": second - first, "made_of": shares.rounded()}))


def model(point: Foreign, checkout: Path) -> dict:
    """What `child` prints of a point."""
    request = [str(checkout), point.kernel, str(point.size)]
    asked = [sys.executable, "-W", "ignore", "-m", "silicon.whole_kernels.foreign", "--child", *request]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{point.name}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def kept() -> dict[str, float]:
    """Return the modelled microseconds of the points that have been run, by name, at the clock that their row has."""
    strangers = uncertainty.POINTS["strangers"]
    return {
        point.name: uncertainty.modelled_us(row)
        for point in POINTS
        for row in strangers
        if point.row.items() <= row.items()
    }


def keep(point: Foreign, found: dict) -> None:
    """Put what `child` printed of a point among the `strangers` of the table, which has a line for each."""
    row = point.row | {"modelled_us": round(found["us"], 2), "long row": True, "made_of": found["made_of"]}
    rows = [*uncertainty.POINTS["strangers"], row]
    lines = [f"  {json.dumps(each)}" for each in rows if each is row or not point.row.items() <= each.items()]
    before, _, rest = TABLE.read_text().partition(' "strangers": [\n')
    _, _, after = rest.partition("\n ],\n")
    together = ",\n".join(lines)
    TABLE.write_text(f'{before} "strangers": [\n{together}\n ],\n{after}')


def table() -> str:
    """The points that have been run."""
    known = kept()
    rows = ["| kernel | size | half | published us | modelled us | error |", "|---|---|---|---|---|---|"]
    for point in POINTS:
        if point.name in known:
            us = known[point.name]
            times = f"{point.us:.1f} | {us:.1f} | {us / point.us - 1:+.0%}"
            rows.append(f"| {point.kernel} | {point.size} | {point.half} | {times} |")
    return "\n".join(rows)


def summary() -> str:
    """What each half of the points comes to, in a sentence."""
    known, said = kept(), []
    for half in ("open", "held-out"):
        errors = [known[p.name] / p.us - 1 for p in POINTS if p.half == half and p.name in known]
        middle = statistics.median(map(abs, errors))
        said.append(f"{half} {len(errors)} points, median error {middle:.1%}, worst {max(errors, key=abs):+.0%}")
    return f"learn-cuda 02e: {'; '.join(said)}."


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("what", choices=("list", "model", "table"))
    parser.add_argument("checkout", nargs="?", type=command.existing, help="of learn-cuda")
    parser.add_argument("--only", default="", help="points whose name contains this")
    parser.add_argument("--half", choices=("held-out", "open"))
    parser.add_argument("--write", action="store_true", help="keep what comes out in whole_kernels.json")
    options = parser.parse_args()
    if options.what == "table":
        return print(f"{table()}\n\n{summary()}")
    if options.what == "model" and not options.checkout:
        parser.error("model wants a checkout")
    for point in POINTS:
        if options.only not in point.name or options.half not in (None, point.half):
            continue
        if options.what == "list":
            print(f"{point.half:8}  {point.us:7.1f} us  {point.name}")
            continue
        found = model(point, options.checkout.resolve())
        us = sustained_us(load("b200"), found["us"], found["made_of"]["tensor"])
        times = f"{point.us:7.1f}  {us:7.1f}  {us / point.us - 1:+.0%}"
        print(f"{point.half:8}  {times}  {point.name}  {found['made_of']}", flush=True)
        if options.write:
            keep(point, found)
    return None


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
