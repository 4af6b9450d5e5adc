"""Finds which SMs of a Hopper GPU one cluster can lie in, how many clusters run at once, and what one more costs.

    python3 -m silicon.probes.gpcs run [FILE]      on a Hopper GPU, with NumPy and libcuda.so.1
    python -m silicon.probes.gpcs model            waves of clusters on the model, beside gpcs.json

A CTA takes all of an SM's shared memory, writes %smid (PTX ISA 10) and stays for a while. SMs that any cluster of two
or more has had together are a group: a GPC, or a part of one. As many clusters as cuOccupancyMaxActiveClusters says
take one wave; that many and one more take two.
"""

from __future__ import annotations

import json
from ctypes import byref, c_int
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import MULTIPROCESSORS, SM_90A, Gpu, Timer, nvidia_smi

TABLE = Path(__file__).with_suffix(".json")
SHARED = 200 << 10
NON_PORTABLE = 14  # CUfunction_attribute: clusters of more than eight CTAs
SIZES = range(1, 17)
STAY, ROUNDS = 20_000, 3  # ns; launches of each size
WAVE, LAUNCHES = 5000, 3  # ns that a CTA of a timed launch stays; launches between two events
WAVES = tuple((size, more) for size in (2, 4, 8) for more in (0, 1))  # (size, clusters beyond those that run at once)
PTX = SM_90A + """.extern .shared .align 128 .b8 smem[];
.visible .entry kernel(.param .u64 out, .param .u64 ns)
{
  .reg .pred p; .reg .b32 cta, sm, lane; .reg .b64 o, begun, now, at, stay;
  ld.param.u64 o, [out]; ld.param.u64 stay, [ns];
  mov.u64 begun, %globaltimer; mov.u32 sm, %smid; mov.u32 cta, %ctaid.x; mov.u32 lane, %tid.x;
  mul.wide.u32 at, cta, 4; add.u64 o, o, at; setp.eq.u32 p, lane, 0; @p st.global.u32 [o], sm;
STAY: mov.u64 now, %globaltimer; sub.u64 now, now, begun; setp.lt.u64 p, now, stay; @p bra STAY;
  ret;
}
"""


def groups(placed: list[list[int]]) -> list[list[int]]:
    """SMs that have been in one cluster, or in clusters that share SMs, ascending. placed: the SMs of each cluster."""
    found: list[set[int]] = []
    for cluster in map(set, placed):
        met = [group for group in found if group & cluster]
        found = [group for group in found if not group & cluster] + [cluster.union(*met)]
    return sorted(map(sorted, found))


def measure_all(file: Path) -> None:
    """Measures all sizes and writes the file."""
    gpu = Gpu()
    sms, timer = gpu.attribute(MULTIPROCESSORS), Timer(gpu)
    kernel, out = gpu.kernel(PTX, shared=SHARED), gpu.allocate(4096)
    gpu.call("cuFuncSetAttribute", kernel, NON_PORTABLE, 1)

    def launch(size: int, clusters: int, ns: int):
        return gpu.launch(kernel, size * clusters, 32, [out, ns], cluster=size, shared=SHARED)

    at_once, placed = {}, []
    for size in SIZES:
        count = c_int()
        gpu.call("cuOccupancyMaxActiveClusters", byref(count), kernel, byref(launch(size, sms, STAY).config))
        at_once[size] = count.value
        for _ in range(ROUNDS if size > 1 else 0):
            launch(size, count.value, STAY)()
            placed += gpu.read(out, 4 * size * count.value).view(np.uint32).reshape(-1, size).tolist()
    counts = {f"{size} x {at_once[size] + more}": (size, at_once[size] + more) for size, more in WAVES}
    launches = {name: [launch(*count, WAVE)] * LAUNCHES for name, count in counts.items()}
    waves = {name: us[0] for name, us in timer.medians(launches, count=5).items()}
    lines = {"machine": gpu.describe(), "nvidia-smi": nvidia_smi(), "SMs": sms, "at once": at_once,
             "groups": groups(placed), "us of clusters that stay 5 us": waves}  # fmt: skip
    text = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in lines.items())
    file.write_text(f"{{\n{text}\n}}\n")


def us_on_the_model(size: int, clusters: int, profile, us: float = WAVE / 1e3) -> float:
    """Microseconds that a launch of clusters which stay so long takes on the model, without its events."""
    import emulated_gpu
    from emulated_gpu.chip import chip_of
    from emulated_gpu.device import DEVICE

    out = np.zeros(size * clusters, np.uint32)
    ticks = round(profile.cycles(us * 1e3))  # of the model's timer
    with DEVICE.as_chip(chip_of(profile.name)), emulated_gpu.timing(profile) as timed:
        emulated_gpu.launch(PTX, "kernel", size * clusters, 32, [out, ticks], cluster=size, shared=SHARED)
    return timed.ends_us[-1]


def model(only: str, profile) -> None:
    """Prints modelled and measured microseconds of each launch whose name contains `only`."""
    for name, us in json.loads(TABLE.read_text())["us of clusters that stay 5 us"].items():
        if only in name:
            print(f"{us_on_the_model(*map(int, name.split(' x ')), profile):8.2f} {us:8.2f}  {name}", flush=True)


if __name__ == "__main__":
    command.main(__doc__, TABLE, measure_all, model)
