"""Measures what accesses to memory cost on a Hopper GPU: cp.async, atomics, reductions, other CTAs' shared memory.

    python3 -m silicon.probes.accesses run [FILE]    on a Hopper GPU, with NumPy and libcuda.so.1
    python -m silicon.probes.accesses model          the same PTX on the model, beside accesses_h200.json

Each warp of each CTA executes an operation this many times, its lanes side by side, a line each, or all at one address;
then all that is under way is waited for. Values are cycles: of the slowest CTA and of the median one, in the median of
the rounds from the second on; each round has addresses of its own, but for one word. Warm: the L2 has what is touched,
from a launch before; cold: a fill has replaced it. A ring waits for all but some of its groups of copies, as pipelined
loads do. PTX ISA 9.7.9.8 to 9.7.9.26, 9.7.13.12 and 13, 9.7.13.15.

Half of the points are held out, by a hash of their names: figures of profiles are fitted to the other half only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import SM_90A
from silicon.probes import cycles
from silicon.probes.cycles import digest

TABLE = Path(__file__).with_name("accesses_h200.json")
ROUNDS, SMS, UNROLL = 4, 132, 8
LANES = {"row": 0, "scattered": 128, "one": 0, "all one": 0}  # bytes between the lanes; a row's: the operation's width

# name -> (PTX with {at}: the address in global memory, {s}, {far}: in shared memory, {k}: number of the operation;
# bytes that a lane touches; what holds a result, if anything)
GLOBAL = {
    "cp.async 4": ("cp.async.ca.shared.global [s+{o}], [{at}], 4;", 4, ""),
    "cp.async 8": ("cp.async.ca.shared.global [s+{o}], [{at}], 8;", 8, ""),
    "cp.async 16": ("cp.async.cg.shared.global [s+{o}], [{at}], 16;", 16, ""),
    "cp.async ca 16": ("cp.async.ca.shared.global [s+{o}], [{at}], 16;", 16, ""),
    "ld 16": ("ld.global.cg.v4.u32 {{x{k}, y0, y1, y2}}, [{at}];", 16, "x"),
    "ld 4": ("ld.global.cg.u32 x{k}, [{at}];", 4, "x"),
    "atom.add u32": ("atom.global.add.u32 x{k}, [{at}], 1;", 4, "x"),
    "atom.exch b32": ("atom.global.exch.b32 x{k}, [{at}], one;", 4, "x"),
    "atom.cas b32": ("atom.global.cas.b32 x{k}, [{at}], 1, one;", 4, "x"),
    "atom.add f32": ("atom.global.add.f32 f{k}, [{at}], 0f3F800000; mov.b32 x{k}, f{k};", 4, "x"),
    "atom.add u64": ("atom.global.add.u64 d{k}, [{at}], 1; cvt.u32.u64 x{k}, d{k};", 8, "x"),
    "red.add u32": ("red.global.add.u32 [{at}], 1;", 4, ""),
    "red.or b32": ("red.global.or.b32 [{at}], one;", 4, ""),
    "red.add f32": ("red.global.add.f32 [{at}], 0f3F800000;", 4, ""),
    "red.add f16x2": ("red.global.add.noftz.f16x2 [{at}], one;", 4, ""),
    "red.add u64": ("red.global.add.u64 [{at}], 1;", 8, ""),
    "red.add v4.f32": ("red.global.add.v4.f32 [{at}], {{fone, fone, fone, fone}};", 16, ""),
    "st 4": ("st.global.u32 [{at}], one;", 4, ""),
    "prefetch.L1": ("prefetch.global.L1 [{at}];", 128, ""),
    "discard": ("discard.global.L2 [{at}], 128;", 128, ""),
    "applypriority": ("applypriority.global.L2::evict_normal [{at}], 128;", 128, ""),
}
SHARED_ONES = {
    "atom.shared.add u32": ("atom.shared.add.u32 x{k}, [s], 1;", 4, "x"),
    "atom.shared.cas b32": ("atom.shared.cas.b32 x{k}, [s], 1, one;", 4, "x"),
    "atom.shared.add f32": ("atom.shared.add.f32 f{k}, [s], 0f3F800000; mov.b32 x{k}, f{k};", 4, "x"),
    "red.shared.add u32": ("red.shared.add.u32 [s], 1;", 4, ""),
    "red.shared.add f32": ("red.shared.add.f32 [s], 0f3F800000;", 4, ""),
    "ld.shared 16": ("ld.volatile.shared.v4.u32 {{x{k}, y0, y1, y2}}, [s];", 16, "x"),
}
FAR = {
    "ld.cluster 4": ("ld.volatile.shared::cluster.u32 x{k}, [far];", 4, "x"),
    "ld.cluster 16": ("ld.volatile.shared::cluster.v4.u32 {{x{k}, y0, y1, y2}}, [far];", 16, "x"),
    "st.cluster 4": ("st.volatile.shared::cluster.u32 [far], one;", 4, ""),
    "st.cluster 16": ("st.volatile.shared::cluster.v4.u32 [far], {{one, one, one, one}};", 16, ""),
    "atom.cluster.add u32": ("atom.shared::cluster.add.u32 x{k}, [far], 1;", 4, "x"),
    "red.cluster.add u32": ("red.shared::cluster.add.u32 [far], 1;", 4, ""),
    "st.async 4": ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [far], one, [farbar];", 4, "tx"),
    "st.async 16": (
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [far], {{one, one, one, one}}, [farbar];",
        16,
        "tx",
    ),
    "red.async u32": (
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [far], one, [farbar];",
        4,
        "tx",
    ),
}
BULK = {
    "bulk reduce f32": ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{at}], [smem], {size};", "g"),
    "bulk reduce u32": ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [{at}], [smem], {size};", "g"),
    "bulk reduce f16": (
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [{at}], [smem], {size};",
        "g",
    ),
    "bulk store": ("cp.async.bulk.global.shared::cta.bulk_group [{at}], [smem], {size};", "g"),
}
CONSTANT = {
    "ld.const": ("ld.const.u32 x{k}, [cc+{o}];", 4, "x"),
    "ld.const, a line": ("ld.const.u32 x{k}, [cc+{word}];", 4, "x"),
}


@dataclass(frozen=True)
class Point:
    """This many warps of each CTA execute an operation `count` times in a round; in clusters of two where it is FAR.

    lanes: of LANES. ring: groups of copies that may be under way at a wait, each of UNROLL copies; 0: one wait at the
    end. size: bytes of a bulk operation.
    """

    what: str
    warps: int = 1
    count: int = 1
    lanes: str = "row"
    grid: int = 1
    cold: bool = False
    ring: int = 0
    size: int = 0

    @property
    def name(self) -> str:
        of = f" of {self.size} bytes" * bool(self.size) + f", ring of {self.ring}" * bool(self.ring)
        way = "" if self.size else f", {self.lanes}"
        return f"{self.what}{of}{way}, {self.grid} x {self.warps} x {self.count}" + ", cold" * self.cold

    @property
    def cluster(self) -> int:
        return 2 if self.what in FAR else 1

    @property
    def width(self) -> int:
        """Bytes that a lane touches."""
        found = GLOBAL | SHARED_ONES | FAR | CONSTANT
        return self.size // 32 if self.size else found[self.what][1]

    @property
    def step(self) -> int:
        """Bytes from an operation of a warp to its next."""
        return {"row": 32 * self.width, "scattered": 32 * 128}.get(self.lanes, 0)

    @property
    def per_cta(self) -> int:
        """Bytes of global memory that a CTA touches in a round."""
        if self.lanes == "all one":
            return 0
        return max(self.step * self.count * self.warps, 128) if self.size or self.what in GLOBAL else 128

    @property
    def nbytes(self) -> int:
        return max(self.grid * ROUNDS * self.per_cta, 4096)

    def operation(self, k: int, offset: str) -> str:
        """PTX of the operation of number k of an unrolled few."""
        at = f"at+{offset}"
        if self.size:
            return BULK[self.what][0].format(at=at, size=self.size)
        text = (GLOBAL | SHARED_ONES | FAR | CONSTANT)[self.what][0]
        return text.format(at=at, k=k, o=512 * k, word=4 * k)

    @property
    def ptx(self) -> str:
        settles = BULK[self.what][1] if self.size else (GLOBAL | SHARED_ONES | FAR | CONSTANT)[self.what][2]
        many = min(self.count, UNROLL)
        assert self.count % many == 0
        body = "\n".join("  " + self.operation(k, str(k * self.step)) for k in range(many))
        if settles == "x":
            body += "\n" + "\n".join(f"  xor.b32 got, got, x{k};" for k in range(many))
        if self.what.startswith("cp.async"):
            body += "\n  cp.async.commit_group;" + f"\n  cp.async.wait_group {self.ring};" * bool(self.ring)
        if settles == "g":
            body += "\n  cp.async.bulk.commit_group;"
        copies = self.what.startswith("cp.async")
        wait = "cp.async.wait_all;" * copies + "cp.async.bulk.wait_group 0;" * (settles == "g")
        if settles == "x":
            wait = "setp.eq.u32 p, got, 0x7fabcdef; @p bra END;"
        if settles == "tx":
            wait = (
                "LANDED: mbarrier.try_wait.parity.shared::cta.b64 p, [bar], phase; @!p bra LANDED;"
                " xor.b32 phase, phase, 1;"
            )
        expected = 32 * self.width * self.warps * self.count
        far = self.cluster > 1
        meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if far else "bar.sync 0;"
        lane = self.width if self.lanes == "row" else LANES[self.lanes]
        apart = 512 if self.warps <= 8 else 0  # bytes of shared memory between the warps
        inside = 0 if self.size or "one" in self.lanes else min(self.width, 16)
        constant = self.what in CONSTANT
        constants = f"mov.u64 cc, c; mad.wide.u32 cc, lane, {inside}, cc;" * constant
        return f"""{SM_90A}.const .align 16 .b8 c[65536];
.shared .align 128 .b8 smem[32768];
.shared .align 8 .b64 bar;
.visible .entry kernel(.param .u64 out, .param .u64 data)
{{
  .reg .pred p, q, first; .reg .b32 r<16>, x<8>, y<4>, one, got, phase, round, i, s, far, farbar, warp, lane;
  .reg .b64 at, o, e, d<8>, cc, start, stop; .reg .f32 f<8>, fone;
  mov.u32 r0, %tid.x; shr.u32 warp, r0, 5; and.b32 lane, r0, 31; mov.u32 r2, %ctaid.x; mov.u32 one, 1; mov.u32 got, 0;
  mov.f32 fone, 0f3F800000; mov.u32 phase, 0; mov.u32 round, 0; setp.eq.u32 first, r0, 0; setp.eq.u32 q, lane, 0;
  ld.param.u64 o, [out]; mul.wide.u32 e, r2, {8 * ROUNDS}; add.u64 o, o, e;
  ld.param.u64 at, [data]; mul.wide.u32 e, r2, {ROUNDS * self.per_cta}; add.u64 at, at, e;
  mul.wide.u32 e, warp, {self.step * self.count}; add.u64 at, at, e;
  {"" if self.size else f"mul.wide.u32 e, lane, {lane}; add.u64 at, at, e;"}
  {constants} mov.u32 s, smem; mad.lo.u32 s, lane, {inside}, s; mad.lo.u32 s, warp, {apart}, s;
  {"cp.async.wait_all;" if self.what.startswith("cp.async") else ""}
  @first mbarrier.init.shared::cta.b64 [bar], 1;
  @first fence.mbarrier_init.release.cluster;
  mov.u32 r3, %cluster_ctarank; xor.b32 r3, r3, 1; mov.u32 farbar, bar;
  {"mapa.shared::cluster.u32 far, s, r3; mapa.shared::cluster.u32 farbar, farbar, r3;" if far else ""}
  {meet}
.pragma "nounroll";
AGAIN:
  {f"@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {expected};" if settles == "tx" else ""}
  mov.u64 start, %clock64;
SPIN: mov.u64 stop, %clock64; sub.u64 e, stop, start; setp.lt.u64 p, e, 2000; @p bra SPIN;
  {meet}
  mov.u64 start, %clock64;
  {"@!q bra DONE;" if self.size else ""}
  mov.u32 i, 0;
.pragma "nounroll";
MORE:
{body}
  add.u64 at, at, {many * self.step}; add.u32 i, i, {many}; setp.lt.u32 p, i, {self.count}; @p bra MORE;
  {wait}
DONE:
  bar.sync 0;
  mov.u64 stop, %clock64;
  sub.u64 e, stop, start; @first st.global.u64 [o], e; add.u64 o, o, 8;
  add.u64 at, at, {self.per_cta - self.step * self.count};
  add.u32 round, round, 1; {"add.u64 cc, cc, 8192;" * constant} setp.lt.u32 p, round, {ROUNDS}; @p bra AGAIN;
END: {meet if far else ""}
  ret;
}}
"""


def points() -> dict[str, Point]:
    """All that is measured, by name."""
    found = []
    copies = ("cp.async 4", "cp.async 8", "cp.async 16", "cp.async ca 16")
    loads = (*copies, "ld 16", "ld 4", "atom.add u32", "atom.add f32", "atom.cas b32", "atom.exch b32", "atom.add u64")
    for what in loads:  # one at a time
        found += [Point(what, cold=cold, grid=grid) for cold in (False, True) for grid in (1, SMS)]
    found += [Point(what, lanes=x) for what in loads for x in ("scattered", "one")]
    for what in ("cp.async 16", "cp.async ca 16", "ld 16"):  # a stream of them
        found += [Point(what, w, 64 // w, grid=g) for w in (1, 4, 8) for g in (1, SMS)]
        found += [Point(what, w, 64 // w, grid=SMS, cold=True) for w in (4, 8)]
    for what in ("cp.async 4", "cp.async 8", "ld 4"):
        found += [Point(what, w, 128 // w, grid=g) for w in (1, 4, 16) for g in (1, SMS)]
        found += [Point(what, 2, 4, "scattered", g) for g in (1, SMS)]
    found += [Point("cp.async 16", w, 128, grid=SMS, cold=True, ring=r) for w in (4, 8) for r in (1, 2, 3)]
    found += [Point("cp.async 16", w, 256, ring=r) for w in (4, 8) for r in (1, 3)]
    atomics = [x for x in GLOBAL if x.startswith(("atom", "red", "st"))]
    for what in atomics:
        many = 128 // GLOBAL[what][1]
        found += [Point(what, w, n, grid=g) for w, n in ((1, 64), (8, many)) for g in (1, SMS)]
        found += [Point(what, 8, 8, "scattered"), Point(what, 2, 4, "scattered", SMS)]
        found += [Point(what, 8, 32, "one", g) for g in (1, SMS)]
        found += [Point(what, 4, 16, "all one", SMS)]
    for what in ("atom.add u32", "red.add u32", "red.add f32"):
        found += [Point(what, 8, 32, grid=SMS, cold=True), Point(what, 2, 4, "scattered", SMS, cold=True)]
        found += [Point(what, 1, 1, "all one", SMS), Point(what, 1, 64, "one"), Point(what, 1, 8, "scattered")]
    for what in SHARED_ONES:
        found += [Point(what, w, n, x) for w in (1, 4, 8) for n in (1, 64) for x in ("row", "one")]
    for what in FAR:
        found += [Point(what, w, n, "row", g) for w, n in ((1, 1), (1, 64), (4, 1), (8, 64)) for g in (2, SMS)]
    found += [Point("st.cluster 16", 1, n, "row", 2) for n in (8, 16, 32)]
    for what in ("prefetch.L1", "discard", "applypriority"):
        found += [Point(what, w, 2, "row", g) for w in (1, 4) for g in (1, SMS)]
    for what in BULK:
        found += [Point(what, 1, n, grid=g, size=z) for n, z in ((1, 512), (1, 8192), (8, 8192)) for g in (1, SMS)]
        found += [Point(what, 1, 8, grid=SMS, size=8192, cold=True)]
    for what in CONSTANT:
        found += [Point(what, w, n, x) for w, n in ((1, 1), (1, 8), (4, 8)) for x in ("one", "row")]
    return {point.name: point for point in found}


def held_out(name: str) -> bool:
    """Whether no figure may be fitted to the point of this name."""
    return hashlib.sha256(f"accesses {name}".encode()).digest()[0] % 2 == 0


def _figures(clocks: np.ndarray, point: Point) -> list[float]:
    """The slowest CTA and the median one, of u64 [CTA, round]."""
    rounds = clocks.view(np.uint64).reshape(point.grid, ROUNDS)[:, 1:]
    return [float(np.median(rounds.max(axis=0))), float(np.median(rounds))]


def measure_all(file: Path) -> None:
    """Measures all points and writes the file."""
    from silicon.cuda_driver import Gpu, Timer

    gpu, found = Gpu(), {}
    flush = Timer(gpu).flush
    known = points()
    out, data = gpu.allocate(SMS * ROUNDS * 8), gpu.allocate(max(point.nbytes for point in known.values()))
    gpu.fill(data, 0, max(point.nbytes for point in known.values()))
    name = ""
    try:
        for name, point in known.items():
            kernel, seen = gpu.kernel(point.ptx), []
            cluster = point.cluster if point.cluster > 1 else None
            launch = gpu.launch(kernel, point.grid, 32 * point.warps, [out, data], cluster)
            for _ in range(7):
                if point.cold:
                    flush()
                launch()
                seen.append(_figures(gpu.read(out, point.grid * ROUNDS * 8), point))
            found[name] = [*(round(float(x), 1) for x in np.median(seen[2:], axis=0)), digest(point)]
    except RuntimeError as error:
        print("FAILED", name, error)
    cycles.write_recording(file, gpu, found)


def on_the_model(point: Point, profile) -> list[float]:
    """Return a point's cycles on the timing model, as `_figures` does."""
    import emulated_gpu

    arrays = cycles.allocated(SMS * ROUNDS * 8, point.nbytes)
    if not point.cold:
        profile = profile.with_({"l2.dirty_at_start": 0.0})
    with emulated_gpu.timing(profile):
        for _ in range(1 if point.cold else 2):
            cluster = point.cluster if point.cluster > 1 else None
            ptx = point.ptx.replace("sm_90a", "sm_90", 1)  # for the machine of any profile
            emulated_gpu.launch(ptx, "kernel", point.grid, 32 * point.warps, arrays, cluster=cluster)
    return _figures(arrays[0][: point.grid * ROUNDS * 8], point)


def model(only: str, profile) -> None:
    """Prints modelled and measured cycles of each point whose name contains `only`."""
    known = cycles.recorded(TABLE)
    for name, point in points().items():
        if only in name:
            entry = known.get(name)
            of = entry[:2] if entry and entry[2] == digest(point) else None
            cycles.show(name + ", held out" * held_out(name), on_the_model(point, profile), of)


if __name__ == "__main__":
    command.main(__doc__, TABLE, measure_all, model)
