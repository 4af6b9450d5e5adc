"""Microbenchmarks of a B200 that correct the timing model's figures: `modal run modal_app.py --mode calibrate`.

Each probe is a small PTX kernel that reads %clock64 (PTX ISA 10, special registers) around tcgen05.mma (9.7.16.10),
tcgen05.ld (9.7.16.8) or a tensor copy (9.7.9.25.5), or a series of empty kernels (griddepcontrol, 9.7.13.13). It runs
on the GPU and on the model, and its figure moves by the difference: the cost of the instructions around it cancels as
far as the model knows them. Then the corrected model runs the probes again, and a figure that leaves it more than
RESIDUAL away from the GPU is rejected. With the model in the GPU's place every figure comes out unchanged.

`python -m silicon.calibrate` does that on this machine's GPU; `--ncu FILE` needs none: it compares Nsight Compute's CSV
of a kernel with the model (ncu.py).

No B200 has run this. An H200 has run what it can of `Gpu`: launches, clusters, PDL, events, the tensor copy.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import emulated_gpu
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.formats import tensormap
from emulated_gpu.model.profile import Profile, load
from silicon import command, cuda_driver, ncu

RESIDUAL = 0.05
REPEATS = 20
HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
BOX_ROWS = 64  # of 128 bytes
OUT, MAP, SOURCE = "out", "map", "source"  # arguments: 64 bytes to write, a tensormap by value, what it maps


@dataclasses.dataclass(frozen=True)
class Probe:
    """A kernel that is launched with one CTA or cluster."""

    ptx: str
    args: tuple  # OUT, MAP, SOURCE or integers
    block: int = 32
    cluster: int = 1
    shared: int = 0


def mma_probe(pair: bool, n: int, count: int) -> Probe:
    """Stores to out[0] the cycles from the first of `count` NVFP4 MMAs on zeros to the wake-up after the commit."""
    group, m = (2, 256) if pair else (1, 128)
    ptx = f"""{HEADER}
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 out, .param .u32 count, .param .u32 idesc)
{{
    .reg .pred p, q; .reg .b32 %r<16>; .reg .b64 %rd<12>;
    mov.u32 %r0, smem;
    ld.param.u64 %rd0, [out]; ld.param.u32 %r1, [count]; ld.param.u32 %r2, [idesc];
    mov.u32 %r10, %tid.x; mov.u32 %r9, %cluster_ctarank;
    tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r0], 512;
    add.u32 %r3, %r0, 64;
    mov.u32 %r12, %r10;
ZERO:
    shl.b32 %r13, %r12, 2; add.u32 %r13, %r13, %r0;
    st.shared.u32 [%r13+1024], 0;
    add.u32 %r12, %r12, 32; setp.lt.u32 p, %r12, 16384;
    @p bra ZERO;
    fence.proxy.async.shared::cta;
    bar.warp.sync -1;
    setp.ne.u32 p, %r10, 0;
    @p bra JOIN;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
JOIN:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    or.b32 %r10, %r10, %r9;
    setp.ne.u32 p, %r10, 0;
    @p bra END;
    ld.shared.u32 %r4, [%r0];
    add.u32 %r11, %r4, 256;
    shr.u32 %r5, %r0, 4; add.u32 %r5, %r5, 64; cvt.u64.u32 %rd1, %r5;
    or.b64 %rd1, %rd1, 0x4000404000000000;
    mov.u32 %r6, 0;
    mov.u64 %rd3, %clock64;
LOOP:
    setp.ne.u32 p, %r6, 0;
    tcgen05.mma.cta_group::{group}.kind::mxf4nvf4.block_scale.block16 [%r4], %rd1, %rd1, %r2, [%r11], [%r11], p;
    add.u32 %r6, %r6, 1;
    setp.lt.u32 q, %r6, %r1;
    @q bra LOOP;
    tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster.b64 [%r3];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 p, [%r3], 0;
    @!p bra WAIT;
    mov.u64 %rd4, %clock64;
    sub.u64 %rd5, %rd4, %rd3;
    st.global.u64 [%rd0], %rd5;
END:
    bar.warp.sync -1;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    ld.shared.u32 %r4, [%r0];
    tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r4, 512;
    tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
    ret;
}}"""
    idesc = 1 << 7 | 1 << 10 | (n >> 3) << 17 | (m >> 4) << 24  # PTX ISA 9.7.16.4.2
    return Probe(ptx, (OUT, count, idesc), cluster=group, shared=100_000)


def load_probe(count: int) -> Probe:
    """Stores to out[0] the cycles of `count` tcgen05.ld of one register, each awaited before the next."""
    ptx = f"""{HEADER}
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 out, .param .u32 count)
{{
    .reg .pred p; .reg .b32 %r<8>; .reg .b64 %rd<8>;
    mov.u32 %r0, smem;
    ld.param.u64 %rd0, [out]; ld.param.u32 %r1, [count];
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 512;
    bar.warp.sync -1;
    ld.shared.u32 %r2, [%r0];
    mov.u32 %r3, 0; mov.u32 %r4, 0;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {{%r3}};
    tcgen05.wait::st.sync.aligned;
    mov.u64 %rd3, %clock64;
LOOP:
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r5}}, [%r2];
    tcgen05.wait::ld.sync.aligned;
    or.b32 %r4, %r4, %r5;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 p, %r3, %r1;
    @p bra LOOP;
    mov.u64 %rd4, %clock64;
    sub.u64 %rd5, %rd4, %rd3;
    cvt.u64.u32 %rd6, %r4;
    add.u64 %rd5, %rd5, %rd6;
    mov.u32 %r6, %tid.x; setp.ne.u32 p, %r6, 0;
    @p bra STORED;
    st.global.u64 [%rd0], %rd5;
STORED:
    bar.warp.sync -1;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 512;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    ret;
}}"""
    return Probe(ptx, (OUT, count), shared=2048)


def first_use_probe() -> Probe:
    """Stores to out[0], out[1] the cycles of the first and the second copy of a box that is in the L2 already."""
    wait = "{0}: mbarrier.try_wait.parity.shared::cta.b64 p, [%r0], {1};\n    @!p bra {0};"
    copy = (
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], %r2;\n"
        "    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%r1], [%rd2, {%r3, %r3}], [%r0];"
    )
    ptx = f"""{HEADER}
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .align 64 .b8 map[128], .param .u64 out, .param .u64 source)
{{
    .reg .pred p; .reg .b32 %r<8>; .reg .b64 %rd<12>;
    mov.u32 %r0, smem; add.u32 %r1, %r0, 1024; mov.u32 %r2, {BOX_ROWS * 128}; mov.u32 %r3, 0;
    ld.param.u64 %rd0, [out]; ld.param.u64 %rd1, [source];
    mov.b64 %rd2, map; cvta.param.u64 %rd2, %rd2;
    mbarrier.init.shared::cta.b64 [%r0], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], %r2;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r0];
    {wait.format("LINEAR", 0)}
    mov.u64 %rd4, %clock64;
    {copy}
    {wait.format("FIRST", 1)}
    mov.u64 %rd5, %clock64;
    {copy}
    {wait.format("SECOND", 0)}
    mov.u64 %rd6, %clock64;
    sub.u64 %rd7, %rd5, %rd4; sub.u64 %rd8, %rd6, %rd5;
    st.global.u64 [%rd0], %rd7; st.global.u64 [%rd0+8], %rd8;
    ret;
}}"""
    return Probe(ptx, (MAP, OUT, SOURCE), block=1, shared=1024 + BOX_ROWS * 128)


EMPTY = Probe(HEADER + ".visible .entry kernel() { griddepcontrol.wait; griddepcontrol.launch_dependents; ret; }", ())


# -------------------------------------------------------------------------------------------------------------- devices


class Model:
    """The timing model in the place of a GPU."""

    series = (4, 8)  # launches in two series of empty kernels, whose difference counts

    def __init__(self, profile: Profile):
        self.profile = profile
        self.source = allocate(BOX_ROWS * 128)
        self.source[:] = 0
        DEVICE.adopt(self.source, "source")
        box = (128, BOX_ROWS)
        self.map = tensormap.encode(
            tensormap.TensorMap(self.source.ctypes.data, "u8", box, (128,), box, (1, 1), swizzle=128)
        )

    def run(self, probe: Probe) -> list[int]:
        """Launches a probe twice; returns the 8 words of OUT."""
        out = allocate(64)
        given = {OUT: out, MAP: self.map, SOURCE: self.source}
        arguments = [given.get(a, a) for a in probe.args]
        with emulated_gpu.timing(self.profile):
            for _ in range(2):
                emulated_gpu.launch(
                    probe.ptx,
                    "kernel",
                    probe.cluster,
                    probe.block,
                    arguments,
                    cluster=probe.cluster,
                    shared=probe.shared,
                )
        return out.view("i8").tolist()

    def series_us(self, probe: Probe, count: int, pdl: bool) -> float:
        """Microseconds that `count` launches take, back to back on all SMs."""
        with emulated_gpu.timing(self.profile) as timed:
            for _ in range(count):
                emulated_gpu.launch(probe.ptx, "kernel", int(self.profile["sm"]["count"]), 32, [], pdl=pdl)
        return timed.ends_us[-1]


class Gpu(cuda_driver.Gpu):
    """The GPU of this machine. Methods raise RuntimeError with the driver's error."""

    series = (50, 250)

    def __init__(self):
        super().__init__()
        self.timer = cuda_driver.Timer(self)
        self.out, source = self.allocate(64), self.allocate(BOX_ROWS * 128)
        self.fill(source, 0, BOX_ROWS * 128)
        box = (128, BOX_ROWS)
        self.kernels: dict[tuple[str, int], object] = {}  # loaded: PTX takes its time to assemble
        self.given = {OUT: self.out, MAP: self.tensormap(source, box, (128,), box, swizzle=3), SOURCE: source}

    def prepared(self, probe: Probe, grid: int, pdl: bool = False) -> cuda_driver.Launch:
        """A launch of a probe, whose kernel is assembled once."""
        key, args = (probe.ptx, probe.shared), [self.given.get(a, a) for a in probe.args]
        if key not in self.kernels:
            self.kernels[key] = self.kernel(probe.ptx, shared=probe.shared)
        cluster = probe.cluster if probe.cluster > 1 else None
        return self.launch(self.kernels[key], grid, probe.block, args, cluster, probe.shared, pdl)

    def run(self, probe: Probe) -> list[int]:
        """The 8 words of OUT: medians over REPEATS launches, after three that are discarded."""
        launch, seen = self.prepared(probe, probe.cluster), []
        self.fill(self.out, 0, 64)
        for _ in range(3 + REPEATS):
            launch()
            seen.append(self.read(self.out, 64).view(np.int64))
        return np.median(seen[3:], axis=0).tolist()

    def series_us(self, probe: Probe, count: int, pdl: bool) -> float:
        """Median microseconds between events around `count` launches, all queued before the first can start."""
        launches = [self.prepared(probe, self.attribute(cuda_driver.MULTIPROCESSORS), pdl)] * count
        return count * float(np.median(self.timer.rounds(launches, REPEATS, before=())))


# -------------------------------------------------------------------------------------------------------------- figures


def mma_intervals(pair: bool) -> Callable:
    """Measures the cycles from MMA to MMA for each N of the profile; pair: cta_group::2."""

    def measure(device, profile: Profile) -> list[float]:
        few, many = 40, 80
        return [
            (device.run(mma_probe(pair, int(n), many))[0] - device.run(mma_probe(pair, int(n), few))[0]) / (many - few)
            for n in profile["tensor"]["n"]
        ]

    return measure


def mma_latency(pair: bool) -> Callable:
    """Measures the latency of an MMA as [a, b] of cycles = a * N + b, by least squares."""

    def measure(device, profile: Profile) -> list[float]:
        ns = profile["tensor"]["n"]
        return np.polyfit(ns, [device.run(mma_probe(pair, int(n), 1))[0] for n in ns], 1).tolist()

    return measure


def load_latency(device, profile: Profile) -> float:
    """Cycles of one tcgen05.ld and its wait."""
    few, many = 32, 96
    return (device.run(load_probe(many))[0] - device.run(load_probe(few))[0]) / (many - few)


def first_use(device, profile: Profile) -> float:
    """Cycles that the first copy through a tensor map takes longer than the second."""
    first, second, *_ = device.run(first_use_probe())
    return first - second


def period_ns(pdl: bool) -> Callable:
    """Measures the nanoseconds from one empty kernel of a series to the next."""

    def measure(device, profile: Profile) -> float:
        few, many = device.series
        return (device.series_us(EMPTY, many, pdl) - device.series_us(EMPTY, few, pdl)) / (many - few) * 1e3

    return measure


FIGURES: dict[str, Callable] = {  # figure of the profile -> what probes it, in the figure's own unit
    "tensor.m128": mma_intervals(pair=False),
    "tensor.pair_m256": mma_intervals(pair=True),
    "tensor.latency_m128": mma_latency(pair=False),
    "tensor.latency_pair_m256": mma_latency(pair=True),
    "tensor.load_latency": load_latency,
    "tma.first_use_cycles": first_use,
    "launch.gap_ns": period_ns(pdl=False),
    "launch.interval_ns": period_ns(pdl=True),
}


def moved(figure, device, model):
    """The figure moved by device - model, element by element."""
    if isinstance(figure, list):
        return [moved(f, d, m) for f, d, m in zip(figure, device, model, strict=True)]
    return round(figure + device - model, 3)


def residual(device, model) -> float:
    """The largest relative difference of the model from the device."""
    device, model = np.atleast_1d(device), np.atleast_1d(model)
    return float(np.max(np.abs(device - model) / np.maximum(np.abs(device), 1e-9)))


def calibrate(device, profile: Profile, figures: tuple[str, ...] = tuple(FIGURES), log=print) -> dict:
    """Corrects figures of a profile by a device, a Gpu or a Model.

    Returns {"patch": {figure: value}, "probes": [what was measured, and modelled before and after]}. Cycles are of the
    SM clock as found.
    """
    model, probes, patch = Model(profile), [], {}
    for figure in figures:
        unit, name = figure.split(".")
        before = FIGURES[figure](model, profile)
        probe = {"figure": figure, "was": profile[unit][name], "modelled": before}
        probes.append(probe)
        try:
            probe["measured"] = FIGURES[figure](device, profile)
        except RuntimeError as error:
            probe["rejected"] = str(error)
            log(f"{figure}: {error}")
            continue
        patch[figure] = moved(profile[unit][name], probe["measured"], before)
        log(f"{figure}: {probe['was']} -> {patch[figure]}")
    corrected = profile.with_(patch)
    model = Model(corrected)
    for probe in probes:
        if "measured" in probe:
            figure = probe["figure"]
            probe["modelled, corrected"] = FIGURES[figure](model, corrected)
            probe["residual"] = round(residual(probe["measured"], probe["modelled, corrected"]), 4)
            if probe["residual"] > RESIDUAL:
                probe["rejected"] = f"the corrected model is {probe['residual']:.0%} away from the GPU"
                log(f"{figure}: rejected: {probe['rejected']}")
                del patch[figure]
    return {"patch": patch, "probes": probes}


def main() -> None:
    """The command line."""
    options = command.parser(__doc__)
    options.add_argument("--ncu", type=Path, metavar="FILE", help="ncu's details page as CSV: compare it with --model")
    options.add_argument("--model", type=Path, metavar="FILE", help="what `profile --json` wrote of the same kernel")
    options.add_argument("--case", type=int, default=0, help="of eval.py's report: which of its cases (default: 0)")
    options.add_argument("--profile", default="b200", help="the model's machine (default: b200)")
    given = options.parse_args()
    if (given.ncu is None) != (given.model is None):
        options.error("--ncu FILE and --model FILE go together")
    try:
        profile = load(given.profile)
        if given.ncu:
            text, model = given.ncu.read_text(), json.loads(given.model.read_text())
            print("\n".join(ncu.report(text, model, given.case, profile.clock_ghz)))
            return
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    with command.on_gpu():
        device = Gpu()
    print(json.dumps(calibrate(device, profile)["patch"], indent=1))


if __name__ == "__main__":
    main()
