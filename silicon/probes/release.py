"""Measures what releases, acquires and fences cost on an H200, and how long a hand-over between two SMs takes.

    python3 -m silicon.probes.release run [FILE]     on an H200, with NumPy and libcuda.so.1
    python -m silicon.probes.release model           the same PTX on the model, beside release.json

One thread executes an operation (PTX ISA 8.8-8.10, 9.7.9.8, 9.7.9.11, 9.7.13.4), with nothing under way or behind
stores and copies of its CTA: ptxas makes MEMBAR of a release or a fence, and lets CCTL.IVALL follow an acquire. Values
are cycles, medians of the rounds from the second on and of all CTAs: from the first store on, and of the operation
alone. In a hand-over a CTA stores rows of 16 bytes a thread, has a barrier and releases a flag; the CTA of another SM
sees the flag, has a barrier and loads the rows. Two CTAs do so in turn; the value is half a round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import SM_90A, Gpu, Timer, nvidia_smi
from silicon.probes.cycles import allocated, digest

TABLE = Path(__file__).with_suffix(".json")
ROUNDS, SMS = 5, 132
ROW = 512  # bytes that a warp stores with an instruction
COPY = 16384  # bytes of a bulk copy
WARPS = 6  # 0 has the operation, 1 to 4 store where "others" do, 5 copies
OPERATIONS = {  # name -> (PTX, whether r20 is there when it is done)
    "nothing": ("", False),
    **{
        f"st.{x}": (f"st.{x}.global.u32 [flag], r0;", False)
        for x in ("relaxed.gpu", "release.cta", "release.cluster", "release.gpu", "release.sys")
    },
    **{
        f"ld.{x}": (f"ld.{x}.global.u32 r20, [flag];", True)
        for x in ("relaxed.gpu", "acquire.cta", "acquire.cluster", "acquire.gpu", "acquire.sys")
    },
    **{
        f"atom.{x}": (f"atom.{x}.global.add.u32 r20, [flag], 1;", True)
        for x in ("relaxed.gpu", "acquire.gpu", "release.gpu", "acq_rel.gpu")
    },
    **{f"red.{x}": (f"red.{x}.global.add.u32 [flag], 1;", False) for x in ("relaxed.gpu", "release.gpu")},
    **{
        x: (f"{x};", False)
        for x in (
            "fence.acq_rel.cta",
            "fence.acq_rel.cluster",
            "fence.acq_rel.gpu",
            "fence.acq_rel.sys",
            "fence.sc.gpu",
            "membar.gl",
        )
    },
    "two fences.acq_rel.gpu": ("fence.acq_rel.gpu; fence.acq_rel.gpu;", False),
    "two st.release.gpu": ("st.release.gpu.global.u32 [flag], r0; st.release.gpu.global.u32 [flag], r0;", False),
    "fence.acq_rel.gpu, st.relaxed.gpu": ("fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [flag], r0;", False),
    "a fence.acq_rel.gpu long after one": (
        "fence.acq_rel.gpu; mov.u64 start, %clock64;\n"
        "REST: mov.u64 stop, %clock64; sub.u64 d, stop, start; setp.lt.u64 p, d, 3000; @p bra REST;\n"
        "  mov.u64 start, %clock64; fence.acq_rel.gpu;",
        False,
    ),
    **{
        f"mbarrier.arrive{x}": (f"mbarrier.arrive{x}.shared::cluster.b64 _, [r5];", False)
        for x in (".release.cluster", ".release.cta", ".relaxed.cluster")
    },
}
COLLECTIVE = {  # which all threads execute
    f"barrier.cluster{x}": (f"barrier.cluster.arrive{x}.aligned; barrier.cluster.wait.aligned;", False)
    for x in (".release", ".relaxed")
}
CLUSTERED = (*(x for x in OPERATIONS if x.startswith("mbarrier")), *COLLECTIVE)  # those run in clusters of two


@dataclass(frozen=True)
class Operation:
    """An operation of OPERATIONS or COLLECTIVE, and what its CTA has under way when it is executed.

    stores: rows of each warp that stores, which is warp 0 (`own`) or four others; loads, bulk_stores: copies of 16 KiB
    into shared memory or out of it, which another warp begins; words: loads of a word of a line of its own by each
    thread of four other warps; meet: whether a barrier of the CTA stands between; grid: CTAs; cold: after a fill.
    """

    what: str
    stores: int = 0
    own: bool = True
    loads: int = 0
    bulk_stores: int = 0
    words: int = 0
    meet: bool = True
    grid: int = 1
    cold: bool = False

    block = 32 * WARPS
    shared = 1024 + 8 * COPY

    @property
    def cluster(self) -> int:
        return 2 if self.what in CLUSTERED else 1

    @property
    def name(self) -> str:
        behind = [f"{self.stores} stores of {'its warp' if self.own else 'each of 4 other warps'}"] * (self.stores > 0)
        behind += [f"{self.loads} copies"] * (self.loads > 0)
        behind += [f"{self.bulk_stores} bulk stores"] * (self.bulk_stores > 0)
        behind += [f"{self.words} loads of each of 4 other warps"] * (self.words > 0)
        text = self.what + (" behind " + ", ".join(behind) if behind else "")
        return text + ", no barrier" * (not self.meet) + f", {self.grid} CTAs" * (self.grid > 1) + ", cold" * self.cold

    @property
    def each(self) -> int:
        """Bytes that a CTA touches in a round: rows, then copies, then words."""
        return max(self.stores * WARPS * ROW + (self.loads + self.bulk_stores) * COPY + self.words * WARPS * 4096, 128)

    @property
    def nbytes(self) -> int:
        return ROUNDS * self.each

    @property
    def ptx(self) -> str:
        text, value = (OPERATIONS | COLLECTIVE)[self.what]
        collective, clusters = self.what in COLLECTIVE, self.cluster > 1
        meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if clusters else "bar.sync 0;"
        others = "sub.u32 r7, warp, 1; setp.gt.u32 p, r7, 3;"
        storing = "setp.ne.u32 p, warp, 0;" if self.own and not self.words else others
        rows = [f"st.global.v4.u32 [at+{i * ROW}], {{r0, r1, r2, r3}};" for i in range(self.stores)]
        rows += [f"ld.relaxed.gpu.global.u32 x{i}, [word+{4096 * i}];" for i in range(self.words)]
        copies = [f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {self.loads * COPY};"] * (self.loads > 0)
        copies += [
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
            f" [r4+{1024 + i * COPY}], [to+{i * COPY}], {COPY}, [smem];"
            for i in range(self.loads)
        ]
        copies += [
            f"cp.async.bulk.global.shared::cta.bulk_group [to+{i * COPY}], [r4+{1024 + i * COPY}], {COPY};"
            for i in range(self.bulk_stores)
        ]
        landed = []
        if self.loads:
            landed = ["LANDED: mbarrier.try_wait.parity.shared::cta.b64 p, [smem], phase; @!p bra LANDED;"]
            landed += ["xor.b32 phase, phase, 1;"]
        if self.bulk_stores:
            copies, landed = [*copies, "cp.async.bulk.commit_group;"], ["cp.async.bulk.wait_group 0;"]
        return f"""{SM_90A}.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 out, .param .u64 data, .param .u64 flags)
{{
  .reg .pred p, q; .reg .b32 r<24>, warp, phase, x<16>; .reg .b64 at, to, word, flag, o, d, begin, start, stop;
  mov.u32 r0, %tid.x; shr.u32 warp, r0, 5; and.b32 r1, r0, 31; mov.u32 r2, %ctaid.x; mov.u32 r3, 0; mov.u32 r4, smem;
  ld.param.u64 o, [out]; mul.wide.u32 d, r2, {8 * ROUNDS}; add.u64 o, o, d;
  ld.param.u64 flag, [flags]; mul.wide.u32 d, r2, 128; add.u64 flag, flag, d;
  ld.param.u64 at, [data]; mul.wide.u32 d, r2, {self.nbytes}; add.u64 at, at, d;
  add.u64 to, at, {self.stores * WARPS * ROW}; mad.wide.u32 word, r0, 128, to;
  mul.lo.u32 r6, warp, {self.stores * ROW}; mad.lo.u32 r6, r1, 16, r6; cvt.u64.u32 d, r6; add.u64 at, at, d;
  setp.eq.u32 p, r0, 0; add.u32 r5, r4, 8; mov.u32 r9, 0;
  @p mbarrier.init.shared::cta.b64 [smem], 1; @p mbarrier.init.shared::cta.b64 [r5], 1;
  @p fence.mbarrier_init.release.cluster;
  mov.u32 r6, %cluster_ctarank; xor.b32 r6, r6, 1; {"mapa.shared::cluster.u32 r5, r5, r6;" if clusters else ""}
  mov.u32 phase, 0; setp.eq.u32 q, warp, {WARPS - 1}; setp.eq.and.u32 q, r1, 0, q;
  {meet}
.pragma "nounroll";
AGAIN:
  bar.sync 0; mov.u64 start, %clock64;
SPIN: mov.u64 stop, %clock64; sub.u64 d, stop, start; setp.lt.u64 p, d, 3000; @p bra SPIN;
  {meet}
  mov.u64 begin, %clock64;
  @!q bra STORE;
  {" ".join(copies)}
STORE: {storing} @p bra STORED;
  {" ".join(rows)}
STORED: {"bar.sync 0;" if self.meet else ""}
  {"" if collective else "setp.ne.u32 p, r0, 0; @p bra DONE;"}
  mov.u64 start, %clock64;
  {text}
  {"setp.eq.u32 p, r20, 0x7fabcdef; @p bra END;" if value else ""}
  mov.u64 stop, %clock64;
  setp.ne.u32 p, r0, 0; @p bra DONE;
  sub.u64 d, stop, begin; cvt.u32.u64 r7, d; sub.u64 d, stop, start; cvt.u32.u64 r8, d;
  st.global.v2.u32 [o], {{r7, r8}}; add.u64 o, o, 8;
DONE: {"".join(f"xor.b32 r9, r9, x{i}; " for i in range(self.words))}
  @!q bra LEFT;
  {" ".join(landed)}
LEFT: add.u64 at, at, {self.each}; add.u64 to, to, {self.each}; add.u64 word, word, {self.each};
  add.u32 r3, r3, 1; setp.lt.u32 p, r3, {ROUNDS}; @p bra AGAIN;
  setp.eq.u32 p, r9, 0x7fabcdef; @p st.global.u32 [o], r9;
END: {meet if clusters else ""}
  ret;
}}
"""


@dataclass(frozen=True)
class HandOver:
    """A hand-over of rows, each 16 bytes a thread, from CTA 0 to CTA `partner` and back.

    order: how the flag is stored and loaded; sleep: nanoseconds between looks at the flag; clear: whether the CTA that
    has seen the flag releases another one; apart: bytes between the flags.
    """

    order: tuple[str, str]
    rows: int = 0
    sleep: int = 0
    clear: bool = False
    partner: int = 1
    apart: int = 128

    grid, block, shared, cold, nbytes, cluster = SMS, 128, 200 << 10, False, 2 * 16 * 2048, 1

    @property
    def name(self) -> str:
        return (
            f"hand-over to CTA {self.partner}, st.{self.order[0]}, ld.{self.order[1]}"
            + f", {self.rows} rows" * (self.rows > 0) + f", nanosleep {self.sleep}" * (self.sleep > 0)
            + ", another release" * self.clear + f", flags {self.apart} bytes apart" * (self.apart != 128)
        )  # fmt: skip

    @property
    def ptx(self) -> str:
        rows = range(self.rows)
        store = "".join(f"  st.global.v4.u32 [mine+{i * 2048}], {{r0, r1, r2, r3}};\n" for i in rows)
        values = ["{{x{}, x{}, x{}, x{}}}".format(*range(4 * i, 4 * i + 4)) for i in rows]
        load = "".join(f"  ld.global.v4.u32 {values[i]}, [theirs+{i * 2048}];\n" for i in rows)
        load += "".join(f"  xor.b32 r10, r10, x{i};\n" for i in range(4 * self.rows))
        clear = "st.release.gpu.global.u32 [seen+64], r3;" if self.clear else ""
        sleep = f"nanosleep.u32 {self.sleep};" if self.sleep else ""
        return f"""{SM_90A}.visible .entry kernel(.param .u64 out, .param .u64 data, .param .u64 flags)
{{
  .reg .pred p, q, first; .reg .b32 r<24>, x<64>; .reg .b64 mine, theirs, seen, told, o, d, last, now;
  mov.u32 r0, %tid.x; mov.u32 r1, %ctaid.x; mov.u32 r2, 0; mov.u32 r3, 1; mov.u32 r10, 0;
  setp.eq.u32 first, r1, 0; setp.eq.u32 p, r1, {self.partner}; or.pred p, p, first; @!p bra END;
  ld.param.u64 o, [out];
  ld.param.u64 mine, [data]; mul.wide.u32 d, r0, 16; add.u64 mine, mine, d; add.u64 theirs, mine, {16 * 2048};
  ld.param.u64 seen, [flags]; add.u64 told, seen, {self.apart};
  @first bra PLACED;
  mov.u64 d, mine; mov.u64 mine, theirs; mov.u64 theirs, d; mov.u64 d, seen; mov.u64 seen, told; mov.u64 told, d;
PLACED: setp.eq.u32 q, r0, 0; mov.u64 last, %clock64;
  @!first bra RECEIVE;
.pragma "nounroll";
SEND:
{store}  bar.sync 0;
  @q st.{self.order[0]}.global.u32 [told], r3;
  @first bra RECEIVE;
  add.u32 r3, r3, 1; setp.gt.u32 p, r3, {ROUNDS}; @p bra END;
RECEIVE: @!q bra SEEN;
LOOK: ld.{self.order[1]}.global.u32 r9, [seen]; setp.ge.u32 p, r9, r3; @p bra COME;
  {sleep} bra LOOK;
COME: {clear}
SEEN: bar.sync 0;
{load}  setp.eq.u32 p, r10, 0x7fabcdef; @p bra END;
  @!first bra SEND;
  mov.u64 now, %clock64; sub.u64 d, now, last; mov.u64 last, now; cvt.u32.u64 r8, d;
  @q st.global.v2.u32 [o], {{r8, r8}}; add.u64 o, o, 8;
  add.u32 r3, r3, 1; setp.le.u32 p, r3, {ROUNDS}; @p bra SEND;
END: ret;
}}
"""


Point = Operation | HandOver


def points() -> list[Point]:
    """All that is measured."""
    found: list[Point] = [Operation(x, grid=2 if x in CLUSTERED else 1) for x in OPERATIONS | COLLECTIVE]
    behind = ("st.release.gpu", "fence.acq_rel.gpu")
    found += [
        Operation(x, n, grid=g, cold=c)
        for x in behind
        for n in (1, 4, 16)
        for g, c in ((1, False), (1, True), (SMS, False), (SMS, True))
    ]
    found += [Operation("st.release.gpu", 64, cold=c) for c in (False, True)]
    found += [
        Operation("st.release.gpu", n, own=False, meet=m, grid=g, cold=c)
        for n in (1, 4, 16)
        for m in (True, False)
        for g, c in ((1, False), (1, True), (SMS, True))
    ]
    found += [Operation("st.release.gpu", loads=n, grid=g, cold=True) for n in (1, 8) for g in (1, SMS)]
    found += [Operation("st.release.gpu", bulk_stores=n, grid=g) for n in (1, 4) for g in (1, SMS)]
    found += [
        Operation(x, 4)
        for x in OPERATIONS
        if "release" in x or "fence" in x or "acq_rel" in x or "membar" in x
        if x not in (*behind, *CLUSTERED)
    ]
    found += [
        Operation(x, n, loads=c, grid=2, cold=c > 0) for x in CLUSTERED for n, c in ((4, 0), (16, 0), (0, 1), (0, 8))
    ]
    found += [
        Operation(x, loads=8, cold=True)
        for x in ("st.release.cta", "fence.acq_rel.cta", "fence.acq_rel.gpu", "ld.acquire.gpu", "st.relaxed.gpu")
    ]
    found += [Operation("st.release.gpu", words=n, grid=g, cold=True) for n in (1, 8) for g in (1, SMS)]
    found += [Operation("st.relaxed.gpu", bulk_stores=4)]
    found += [Operation("ld.acquire.gpu", 4), Operation("ld.relaxed.gpu", 4)]
    weak, strong = ("relaxed.gpu", "relaxed.gpu"), ("release.gpu", "acquire.gpu")
    found += [HandOver(o, partner=p, apart=a) for o in (weak, strong) for p in (1, 2, 40, 70, 131) for a in (128, 4096)]
    found += [HandOver(strong, sleep=64, partner=p) for p in (1, 70)]
    found += [
        HandOver(strong, rows, s, c, partner=p)
        for rows in (2, 8)
        for s, c in ((0, False), (64, False), (64, True))
        for p in (1, 70)
    ]
    return found  # fmt: skip


def _median(cycles, point: Point):
    """Median cycles [from the first store on, of the operation alone] of u32 [CTA, round, 2].

    Of a hand-over both are half a round.
    """
    if isinstance(point, HandOver):
        cycles = cycles[:1] / 2
    return [round(float(x), 1) for x in np.median(np.median(cycles[:, 1:], axis=1), axis=0)]


def measure_all(file: Path) -> None:
    """Measures all points and writes the file."""
    gpu, found = Gpu(), {}
    flush = Timer(gpu).flush
    out, data, flags = (gpu.allocate(n) for n in (SMS * ROUNDS * 8, 1 << 28, 1 << 16))
    try:
        for point in points():
            kernel, seen = gpu.kernel(point.ptx, shared=point.shared), []
            launch = gpu.launch(
                kernel,
                point.grid,
                point.block,
                [out, data, flags],
                point.cluster if point.cluster > 1 else None,
                point.shared,
            )
            for _ in range(7):
                gpu.fill(flags, 0, 1 << 16)
                if point.cold:
                    flush()
                launch()
                each = gpu.read(out, point.grid * ROUNDS * 8).view(np.uint32).reshape(point.grid, ROUNDS, 2)
                seen.append(_median(each, point))
            cycles = [round(float(x), 1) for x in np.median(seen[2:], axis=0)]
            found[point.name] = {"digest": digest(point), "cycles": cycles}
    except RuntimeError as error:
        print("FAILED", point.name, error)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    head = json.dumps({"machine": gpu.describe() | {"nvidia-smi": nvidia_smi()}}, indent=1)[:-2]
    file.write_text(f'{head},\n "points": {{\n{lines}\n }}\n}}\n')


def on_the_model(point: Point, profile) -> list[float]:
    """Return a point's cycles on the timing model, as `_median` does."""
    import emulated_gpu

    arrays = allocated(SMS * ROUNDS * 8, max(point.grid * point.nbytes, 1 << 16), 1 << 16)
    if not point.cold:
        profile = profile.with_({"l2.dirty_at_start": 0.0})
    with emulated_gpu.timing(profile):
        for _ in range(1 if point.cold else 2):
            arrays[2][:] = 0
            cluster = point.cluster if point.cluster > 1 else None
            options = {"cluster": cluster, "shared": point.shared}
            ptx = point.ptx.replace("sm_90a", "sm_90", 1)  # for the machine of any profile
            emulated_gpu.launch(ptx, "kernel", point.grid, point.block, arrays, **options)
    return _median(arrays[0].view(np.uint32)[: point.grid * ROUNDS * 2].reshape(point.grid, ROUNDS, 2), point)


def model(only: str, profile) -> None:
    """Prints modelled and measured cycles of each point whose name contains `only`."""
    known = json.loads(TABLE.read_text())["points"] if TABLE.exists() else {}
    for point in points():
        if only in point.name:
            found, entry = on_the_model(point, profile), known.get(point.name, {})
            of = entry["cycles"] if entry.get("digest") == digest(point) else [float("nan")] * 2
            cells = " ".join(f"{m:8.0f} {v:8.0f}" for m, v in zip(found, of, strict=True))
            print(f"{cells} {found[0] / of[0] - 1:+7.1%}  {point.name}", flush=True)


if __name__ == "__main__":
    command.main(__doc__, TABLE, measure_all, model)
