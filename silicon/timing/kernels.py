"""Writes the PTX of the timed kernels (sm_90a): loads, stores, empty kernels, tensor maps, and in-kernel clocks.

Each generator returns one module with one entry, `kernel`. The same text runs on a GPU and in the emulator.
PTX ISA sections: 9.7.9.25 (bulk and tensor copies), 9.7.13.15 (mbarrier), 9.7.13.13 (griddepcontrol), 10 (clock64).
"""

from __future__ import annotations

from dataclasses import dataclass

HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"
RING = 1024  # shared offset of the ring: 1024-byte alignment for the 128-byte swizzle; barriers lie below it
EMPTY = 256  # shared offset of the empty barriers; the full barriers start at 0
TRANSACTION = "mbarrier::complete_tx::bytes"


def _kernel(params: list[str], body: str) -> str:
    declarations = ",\n".join(f"  .param {p}" for p in params)
    return (
        f"{HEADER}.extern .shared .align 1024 .b8 smem[];\n"
        f".visible .entry kernel(\n{declarations})\n{{\n"
        "  .reg .pred %p<16>;\n  .reg .b16 %h<16>;\n  .reg .b32 %r<96>;\n  .reg .b64 %rd<48>;\n  .reg .f32 %f<48>;\n"
        f"{body}\n  ret;\n}}\n"
    )


def _wait(label: str, barrier: str, parity: str) -> str:
    """PTX that waits until the phase of this parity of an mbarrier has completed."""
    return (
        f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %p15, [{barrier}], {parity};\n"
        f"  @!%p15 bra {label};\n"
    )  # fmt: skip


def _advance(depth: int, stage: str, phase: str) -> str:
    return (
        f"  add.u32 {stage}, {stage}, 1; setp.eq.u32 %p14, {stage}, {depth};\n"
        f"  @%p14 xor.b32 {phase}, {phase}, 1; @%p14 mov.b32 {stage}, 0;\n"
    )


@dataclass(frozen=True)
class Loads:
    """Writes the kernel of `loads` part by part; the fields are the arguments of that function.

    Registers that the parts share: %r3 cluster, %r4 clusters, %r5 rank in the cluster, %r6 tiles, %r7 unique, %r8 tile
    bytes, %r9 boxes along a row, %r11 shared memory, %r12 tile, %r14 bytes left in it, %r18 bytes of the chunk, %r28
    and %r29 stage and parity of the ring; %rd2 source, %rd3 address in it, or %r16 and %r17 column and row of the box.
    """

    copy: str
    chunk: int
    depth: int
    pdl: str
    trigger: str
    prefetch: int
    cluster: int
    multicast: bool

    @property
    def tensor(self) -> bool:
        return self.copy == "tensor"

    @property
    def ptx(self) -> str:
        branch = "  setp.eq.u32 %p0, %r1, 1;\n  @%p0 bra CONSUME;\n"
        source = ".align 64 .b8 src[128]" if self.tensor else ".u64 src"
        sizes = [f".u32 {n}" for n in ("tiles", "unique", "tile_bytes", "row_boxes", "out_bytes")]
        return _kernel([source, ".u64 out", *sizes], self.setup() + branch + self.producer() + self.consumer())

    def setup(self) -> str:
        """PTX that loads arguments, initialises barriers and lets the next launch start, if it may at once."""
        text = f"""
  mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31;
  mov.u32 %r3, %clusterid.x; mov.u32 %r4, %nclusterid.x; mov.u32 %r5, %cluster_ctarank;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r6, [tiles]; ld.param.u32 %r7, [unique];
  ld.param.u32 %r8, [tile_bytes]; ld.param.u32 %r9, [row_boxes]; ld.param.u32 %r10, [out_bytes];
  mov.u32 %r11, smem;
  {"mov.b64 %rd2, src; cvta.param.u64 %rd2, %rd2;" if self.tensor else "ld.param.u64 %rd2, [src];"}
  mov.b16 %h1, {(1 << self.cluster) - 1};
  setp.ne.u32 %p0, %r0, 0;
  @%p0 bra READY;
  {"prefetch.tensormap [%rd2];" if self.tensor else ""}
"""
        for s in range(self.depth):
            text += f"  mbarrier.init.shared::cta.b64 [%r11+{8 * s}], 1;\n"
            arrivals = self.cluster if self.multicast else 1
            text += f"  mbarrier.init.shared::cta.b64 [%r11+{EMPTY + 8 * s}], {arrivals};\n"
        text += "  fence.mbarrier_init.release.cluster;\nREADY:\n"
        meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if self.cluster > 1 else "bar.sync 0;"
        text += f"  {meet}\n"
        if self.pdl != "none" and self.trigger == "start":
            text += "  griddepcontrol.launch_dependents;\n"
        return text

    def start_of_tile(self) -> str:
        """PTX that sets %r14, and %rd3 or %r16 and %r17, to the first chunk of tile %r12."""
        text = """
  rem.u32 %r13, %r12, %r7;
  mul.wide.u32 %rd3, %r13, %r8; add.u64 %rd3, %rd3, %rd2;
  mov.b32 %r14, %r8;"""
        if self.tensor:
            text += f"""
  div.u32 %r15, %r8, {self.chunk}; mul.lo.u32 %r15, %r15, %r13;
  rem.u32 %r16, %r15, %r9; shl.b32 %r16, %r16, 7;
  div.u32 %r17, %r15, %r9; mul.lo.u32 %r17, %r17, {self.chunk // 128}; shl.b32 %r23, %r9, 7;"""
        return text

    def next_chunk(self) -> str:
        """PTX that moves %r14, and %rd3 or %r16 and %r17, behind the chunk of %r18 bytes."""
        text = "  sub.u32 %r14, %r14, %r18; cvt.u64.u32 %rd4, %r18; add.u64 %rd3, %rd3, %rd4;\n"
        if self.tensor:
            text += (
                "  add.u32 %r16, %r16, 128; setp.eq.u32 %p13, %r16, %r23;\n"
                f"  @%p13 mov.b32 %r16, 0; @%p13 add.u32 %r17, %r17, {self.chunk // 128};\n"
            )
        return text

    def ahead(self) -> str:
        """PTX that prefetches the first chunks of the first tile to the L2."""
        if not self.prefetch:
            return ""
        fetch = (
            "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd2, {%r16, %r17}];"
            if self.tensor
            else "cp.async.bulk.prefetch.L2.global [%rd3], %r18;"
        )
        return f"""
  mov.b32 %r12, %r3; setp.ge.u32 %p1, %r12, %r6;
  @%p1 bra FETCHED;
{self.start_of_tile()}
  mov.b32 %r20, 0;
FETCH: min.u32 %r18, %r14, {self.chunk};
  {fetch}
{self.next_chunk()}
  add.u32 %r20, %r20, 1; setp.lt.u32 %p1, %r20, {self.prefetch}; setp.ne.u32 %p2, %r14, 0; and.pred %p1, %p1, %p2;
  @%p1 bra FETCH;
FETCHED:
"""

    def load(self) -> str:
        """PTX that issues a chunk's copy, or this CTA's part of it, to %r19, completing at [%r31]."""
        mask, cast = (", %h1", ".multicast::cluster") if self.multicast else ("", "")
        if self.multicast:
            text = f"  div.u32 %r21, %r18, {self.cluster}; mul.lo.u32 %r22, %r21, %r5; cvt.u64.u32 %rd5, %r22;\n"
            text += "  add.u64 %rd6, %rd3, %rd5; add.u32 %r19, %r19, %r22;\n"
            row = f"mad.lo.u32 %r24, %r5, {self.chunk // self.cluster // 128}, %r17;"
        else:
            text = "  mov.b32 %r21, %r18; mov.b64 %rd6, %rd3;\n"
            row = "mov.b32 %r24, %r17;"
        if self.tensor:
            copy = f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.{TRANSACTION}{cast}"
            return f"{text}  {row}\n\n  {copy} [%r19], [%rd2, {{%r16, %r24}}], [%r31]{mask};"
        copy = f"cp.async.bulk.shared::cluster.global.{TRANSACTION}{cast}"
        return f"{text}\n  {copy} [%r19], [%rd6], %r21, [%r31]{mask};"

    def producer(self) -> str:
        """PTX of the producer warp, one lane of which fills the ring."""
        return f"""
  setp.ne.u32 %p0, %r2, 0;
  @%p0 bra DONE;
{self.ahead()}
  {"griddepcontrol.wait;" if self.pdl == "wait" else ""}
  mov.b32 %r28, 0; mov.b32 %r29, 1; mov.b32 %r12, %r3;
LOAD_TILE: setp.ge.u32 %p1, %r12, %r6;
  @%p1 bra ISSUED;
{self.start_of_tile()}
LOAD_CHUNK: min.u32 %r18, %r14, {self.chunk};
  shl.b32 %r30, %r28, 3; add.u32 %r31, %r11, %r30;
  add.u32 %r32, %r31, {EMPTY};
{_wait("EMPTY_WAIT", "%r32", "%r29")}
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r31], %r18;
  mad.lo.u32 %r19, %r28, {self.chunk}, %r11; add.u32 %r19, %r19, {RING};
{self.load()}
{_advance(self.depth, "%r28", "%r29")}
{self.next_chunk()}
  setp.ne.u32 %p1, %r14, 0;
  @%p1 bra LOAD_CHUNK;
  add.u32 %r12, %r12, %r4;
  bra LOAD_TILE;
ISSUED:
  {"griddepcontrol.launch_dependents;" if self.pdl != "none" and self.trigger == "issued" else ""}
  bra DONE;
"""

    def consumer(self) -> str:
        """PTX of the consumer warp: lanes add up a word of each chunk, free the stages and store the sums as output."""
        if self.multicast:
            free = "".join(
                f"  mapa.shared::cluster.u32 %r38, %r36, {rank}; @!%p0 mbarrier.arrive.shared::cluster.b64 _, [%r38];\n"
                for rank in range(self.cluster)
            )
        else:
            free = "  @!%p0 mbarrier.arrive.shared::cta.b64 _, [%r36];\n"
        return f"""
CONSUME:
  {"griddepcontrol.wait;" if self.pdl == "wait" else ""}
  setp.ne.u32 %p0, %r2, 0;
  mov.b32 %r28, 0; mov.b32 %r29, 0; mov.b32 %r12, %r3; shl.b32 %r33, %r2, 2; add.u32 %r33, %r33, %r11;
READ_TILE: setp.ge.u32 %p1, %r12, %r6;
  @%p1 bra DONE;
  mov.b32 %r14, %r8; mov.b32 %r34, 0;
READ_CHUNK: min.u32 %r18, %r14, {self.chunk};
  shl.b32 %r30, %r28, 3; add.u32 %r31, %r11, %r30; add.u32 %r36, %r31, {EMPTY};
{_wait("FULL_WAIT", "%r31", "%r29")}
  mad.lo.u32 %r37, %r28, {self.chunk}, %r33; ld.shared.u32 %r35, [%r37+{RING}];
  add.u32 %r34, %r34, %r35;
  bar.warp.sync 0xffffffff;
{free}
{_advance(self.depth, "%r28", "%r29")}
  sub.u32 %r14, %r14, %r18; setp.ne.u32 %p1, %r14, 0;
  @%p1 bra READ_CHUNK;
  {"griddepcontrol.wait;" if self.pdl == "early" else ""}
  mad.lo.u32 %r39, %r12, {self.cluster}, %r5;
  mul.wide.u32 %rd7, %r39, %r10; add.u64 %rd7, %rd7, %rd1; shl.b32 %r40, %r2, 4; cvt.u64.u32 %rd8, %r40;
  add.u64 %rd7, %rd7, %rd8;
STORE: setp.ge.u32 %p1, %r40, %r10;
  @%p1 bra STORED;
  st.global.v4.b32 [%rd7], {{%r34, %r34, %r34, %r34}};
  add.u64 %rd7, %rd7, 512; add.u32 %r40, %r40, 512;
  bra STORE;
STORED:
  add.u32 %r12, %r12, %r4;
  bra READ_TILE;
DONE:
  {"barrier.cluster.arrive; barrier.cluster.wait;" if self.cluster > 1 else ""}
"""


def loads(
    copy: str,
    chunk: int,
    depth: int,
    pdl: str = "none",
    trigger: str = "start",
    prefetch: int = 0,
    cluster: int = 1,
    multicast: bool = False,
) -> str:
    """A kernel that only loads: a producer warp fills a ring of `depth` stages of `chunk` bytes, another frees them.

    copy: "bulk" (arguments: pointer) or "tensor" (argument: 2-D u8 map with a box of 128 B x chunk/128 rows, or
    chunk/128/cluster rows with multicast). Further arguments: out pointer, tiles, unique, tile bytes, boxes along a row
    of the tensor (unused by bulk), out bytes per tile.
    Tile t belongs to cluster t % clusters and starts at (t % unique) * tile bytes; the consumer then writes its out
    bytes with 16-byte stores. All CTAs of a cluster load the same tiles: each for itself, or with `multicast` each
    loads its part of a chunk for all of them.
    pdl: "none" no griddepcontrol; "wait" both warps wait first; "early" only the stores wait; both after an L2 prefetch
    of the first `prefetch` chunks. trigger: launch_dependents at the "start", when the last load is "issued", "never".
    """
    assert copy in ("bulk", "tensor") and pdl in ("none", "wait", "early") and trigger in ("start", "issued", "never")
    assert not multicast or cluster > 1
    return Loads(copy, chunk, depth, pdl, trigger, prefetch, cluster, multicast).ptx


def stores(width: int, rows: int, pdl: bool = False) -> str:
    """Plain stores to a row-major matrix: `width` bytes per lane, a CTA tile of threads * width bytes x `rows` rows.

    Arguments: out pointer, tiles, tiles along a row, pitch in bytes. Tile t belongs to CTA t % CTAs.
    """
    value = {2: "b16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}[width]
    operand = {2: "%h1", 4: "%r8", 8: "{%r8, %r8}", 16: "{%r8, %r8, %r8, %r8}"}[width]
    unroll = 8
    assert rows % unroll == 0
    line = f"  st.global.{value} [%rd3], {operand}; add.u64 %rd3, %rd3, %rd2;\n"
    body = f"""
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %nctaid.x;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r4, [tiles]; ld.param.u32 %r5, [tiles_x]; ld.param.u32 %r6, [pitch];
  cvt.u64.u32 %rd2, %r6;
  {"griddepcontrol.launch_dependents; griddepcontrol.wait;" if pdl else ""}
  mul.lo.u32 %r12, %r1, {width}; mul.lo.u32 %r13, %r0, {width};
TILE: setp.ge.u32 %p0, %r2, %r4;
  @%p0 bra DONE;
  rem.u32 %r7, %r2, %r5; div.u32 %r9, %r2, %r5; mul.lo.u32 %r9, %r9, {rows};
  mad.lo.u32 %r10, %r7, %r12, %r13;
  mul.wide.u32 %rd3, %r9, %r6; cvt.u64.u32 %rd4, %r10; add.u64 %rd3, %rd3, %rd4; add.u64 %rd3, %rd3, %rd1;
  mov.b32 %r8, %r2; cvt.u16.u32 %h1, %r2; mov.b32 %r11, 0;
ROWS:
{line * unroll}
  add.u32 %r11, %r11, {unroll}; setp.lt.u32 %p1, %r11, {rows};
  @%p1 bra ROWS;
  add.u32 %r2, %r2, %r3;
  bra TILE;
DONE:
"""
    return _kernel([".u64 out", ".u32 tiles", ".u32 tiles_x", ".u32 pitch"], body)


def tma_stores(rows: int, boxes: int, pdl: bool = False) -> str:
    """Tensor stores from shared memory: tiles of `boxes` boxes of 128 B x `rows` rows, 128-byte swizzled, side by side.

    Arguments: map of the output (u8), tiles, tiles along a row. Shared memory: RING + boxes * rows * 128 bytes, written
    once by the CTA. One thread issues a tile's stores as one group and waits until they were read before the next tile.
    """
    copies = "".join(
        "  cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
        f" [%rd1, {{%r12, %r9}}], [%r11+{RING + b * rows * 128}];"
        " add.u32 %r12, %r12, 128;\n"
        for b in range(boxes)
    )
    body = f"""
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %nctaid.x;
  mov.b64 %rd1, dst; cvta.param.u64 %rd1, %rd1; ld.param.u32 %r4, [tiles]; ld.param.u32 %r5, [tiles_x];
  mov.u32 %r11, smem;
  {"griddepcontrol.launch_dependents;" if pdl else ""}
  setp.eq.u32 %p0, %r0, 0;
  @%p0 prefetch.tensormap [%rd1];
  shl.b32 %r6, %r0, 4;
FILL: setp.ge.u32 %p1, %r6, {boxes * rows * 128};
  @%p1 bra FILLED;
  add.u32 %r7, %r11, %r6; st.shared.v4.b32 [%r7+{RING}], {{%r6, %r6, %r2, %r2}};
  mad.lo.u32 %r6, %r1, 16, %r6;
  bra FILL;
FILLED:
  {"griddepcontrol.wait;" if pdl else ""}
  fence.proxy.async.shared::cta; bar.sync 0;
  @!%p0 bra DONE;
TILE: setp.ge.u32 %p1, %r2, %r4;
  @%p1 bra WRITTEN;
  rem.u32 %r12, %r2, %r5; mul.lo.u32 %r12, %r12, {boxes * 128}; div.u32 %r9, %r2, %r5; mul.lo.u32 %r9, %r9, {rows};
{copies}
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group.read 0;
  add.u32 %r2, %r2, %r3;
  bra TILE;
WRITTEN: cp.async.bulk.wait_group 0;
DONE:
"""
    return _kernel([".align 64 .b8 dst[128]", ".u32 tiles", ".u32 tiles_x"], body)


def empty(param_bytes: int = 64, pdl: bool = False) -> str:
    """An empty kernel, which only reads the last word of its `param_bytes` of parameters (one argument of zeros)."""
    body = f"""
  {"griddepcontrol.launch_dependents; griddepcontrol.wait;" if pdl else ""}
  ld.param.u32 %r0, [a+{param_bytes - 4}]; setp.ne.u32 %p0, %r0, 0;
  @%p0 trap;
"""
    return _kernel([f".align 8 .b8 a[{param_bytes}]"], body)


# -- kernels that read the clock: out[ctaid][slot] = cycles (u32) ------------------------------------------------------
SLOTS = 8  # repetitions inside a launch; the first meets cold instruction caches
COMMON = """
  mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31;
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, smem; mov.u32 %r5, %cluster_ctarank;
"""
CLOCK = "  mov.u64 {}, %clock64;\n"


def _spin(cycles: int, label: str) -> str:
    return (
        CLOCK.format("%rd40")
        + f"{label}:\n"
        + CLOCK.format("%rd41")
        + f"  sub.u64 %rd42, %rd41, %rd40; setp.lt.u64 %p12, %rd42, {cycles}; @%p12 bra {label};\n"
    )


def _out(slots: int) -> str:
    return f"  ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r3, {4 * slots}; add.u64 %rd1, %rd1, %rd2;\n"


def _write(start: str, stop: str) -> str:
    """PTX that stores a difference of clocks (thread 0) to the next slot."""
    return (
        f"  sub.u64 %rd43, {stop}, {start}; cvt.u32.u64 %r94, %rd43; setp.eq.u32 %p11, %r0, 0;\n"
        "  @%p11 st.global.u32 [%rd1], %r94; add.u64 %rd1, %rd1, 4;\n"
    )


def probe(
    setup: str,
    body: str,
    params: tuple[str, ...] = (),
    keep: tuple[str, ...] = (),
    settle: str = "",
    step: str = "",
    finish: str = "",
    together: bool = False,
) -> str:
    """A kernel that stores the cycles of `body`, SLOTS times in a loop.

    keep: 32-bit registers whose values must be computed at all; settle: one that must be there before the clock stops.
    together: the clock stops when all warps are that far. step: what follows each slot, finish: what follows the loop.
    """
    live = "".join(f"  xor.b32 %r93, %r93, {r};\n" for r in keep)
    # only a branch on the value keeps the second clock read behind it
    settled = f"  setp.eq.u32 %p9, {settle}, 0x7fabcdef;\n  @%p9 bra OUT;\n" if settle else ""
    text = f"""{COMMON}{_out(SLOTS)}
  mov.b32 %r92, 0; mov.b32 %r93, 0;
{setup}
  .pragma "nounroll";
AGAIN:
  bar.sync 0;
{CLOCK.format("%rd44")}
{body}
{settled}{"  bar.sync 0;" if together else ""}
{CLOCK.format("%rd45")}
{_write("%rd44", "%rd45")}
{step}
  add.u32 %r92, %r92, 1; setp.lt.u32 %p10, %r92, {SLOTS};
  @%p10 bra AGAIN;
OUT:
{live}
  setp.eq.u32 %p10, %r93, 0x7fabcdef;
  @%p10 st.global.u32 [%rd1], %r93;
{finish}
"""
    return _kernel([".u64 out", *params], text)


_SEEDS = "".join(f"  cvt.rn.f32.u32 %f{i}, %r0; add.f32 %f{i}, %f{i}, 0f3F8{i:05x};\n" for i in range(16)) + "".join(
    f"  mad.lo.u32 %r{10 + i}, %r0, {i + 3}, {i + 1};\n" for i in range(16)
)
_KEEP_FLOATS = "".join(f"  mov.b32 %r{30 + i}, %f{i};\n" for i in range(16))
CHAINS = {  # name -> (one step, dependent instructions in it); moves between register types cost nothing
    "add.f32": ("add.f32 %f0, %f0, %f1;", 1),
    "fma.f32": ("fma.rn.f32 %f0, %f0, %f1, %f2;", 1),
    "add.s32": ("add.u32 %r10, %r10, %r11; add.u32 %r11, %r11, %r10;", 2),
    "lop3": ("lop3.b32 %r10, %r10, %r11, %r12, 0x96; lop3.b32 %r10, %r10, %r13, %r14, 0x1e;", 2),
    "shift": ("shf.l.wrap.b32 %r10, %r10, %r11, %r12;", 1),
    "mad.s32": ("mad.lo.u32 %r10, %r10, %r11, %r12;", 1),
    "mul.wide": ("mul.wide.u32 %rd10, %r10, %r11; cvt.u32.u64 %r10, %rd10;", 1),
    "cvt.f16x2": ("cvt.rn.f16x2.f32 %r10, %f0, %f1; mov.b32 %f0, %r10;", 1),
    "cvt.f16": ("cvt.rn.f16.f32 %h1, %f0; cvt.f32.f16 %f0, %h1;", 2),
    "ex2": ("ex2.approx.ftz.f32 %f0, %f0;", 1),
    "shfl": ("shfl.sync.bfly.b32 %r10, %r10, 1, 31, 0xffffffff;", 1),
    "setp_selp": ("setp.lt.u32 %p1, %r10, %r11; selp.b32 %r10, %r12, %r13, %p1;", 2),
}


def chain(name: str, steps: int = 256) -> str:
    """Latency of dependent instructions: `steps` of CHAINS[name] in a row."""
    last = "  mov.b32 %r30, %f0; lop3.b32 %r30, %r30, %r10, %r11, 0x96;\n"
    return probe(_SEEDS, f"  {CHAINS[name][0]}\n" * steps + last, settle="%r30")


def divisions(uniform: bool, steps: int = 16) -> str:
    """Latency of dependent div.u32, of registers whose values all lanes share (`uniform`) or not."""
    setup = "  add.u32 %r10, %r3, 7; add.u32 %r11, %r3, 0x70000000;\n" if uniform else _SEEDS
    return probe(setup, "  div.u32 %r10, %r11, %r10;\n" * steps, settle="%r10")


def independent(name: str, steps: int = 64) -> str:
    """Issue rate: 8 * `steps` instructions without near dependences in every warp, then bar.sync."""
    form = {
        "fma.f32": "fma.rn.f32 %f{0}, %f{0}, %f{0}, %f15;",
        "add.s32": "add.u32 %r{1}, %r{1}, %r{2};",
        "mad.s32": "mad.lo.u32 %r{1}, %r{1}, %r{1}, %r18;",
        "cvt.f16x2": "cvt.rn.f16x2.f32 %r{1}, %f{0}, %f15; mov.b32 %f{0}, %r{1};",
    }[name]
    line = "".join(f"  {form.format(i, 10 + i, 10 + (i + 1) % 8)}\n" for i in range(8))
    used = "".join(
        f"  mov.b32 %r{30 + i}, %f{i};\n  lop3.b32 %r40, %r40, %r{30 + i}, %r{10 + i}, 0x96;\n" for i in range(8)
    )
    return probe(_SEEDS, line * steps + "  mov.b32 %r40, 0;\n" + used, settle="%r40", together=True)


def straight(instructions: int) -> str:
    """Code fetch: `instructions` FMAs of 4 independent chains in a straight line; slot 0 is the first execution."""
    line = "".join(f"  fma.rn.f32 %f{i}, %f{i}, %f{i}, %f15;\n" for i in range(4))
    return probe(_SEEDS, line * (instructions // 4) + _KEEP_FLOATS, keep=tuple(f"%r{30 + i}" for i in range(4)))


def nothing() -> str:
    """Two clock reads with nothing between: what every slot of the other probes contains."""
    return probe("", "")


def elect(steps: int = 64) -> str:
    """Cycles of `steps` elect.sync."""
    return probe("", "  elect.sync %r10|%p1, 0xffffffff; @%p1 add.u32 %r11, %r11, %r92;\n" * steps, keep=("%r11",))


def load_chase(space: str, stride: int = 4096, steps: int = 16) -> str:
    """Latency of dependent loads from "shared" or "global" memory (arguments: src, a zero).

    Global ones lie `stride` bytes apart; no address is loaded twice unless the stride is 0.
    """
    if space == "shared":
        setup = "  st.shared.u32 [%r4], %r4; bar.sync 0; mov.b32 %r10, %r4;\n"
        return probe(setup, "  ld.shared.u32 %r10, [%r10];\n" * steps, settle="%r10")
    setup = (
        f"  ld.param.u64 %rd3, [src]; ld.param.u64 %rd4, [zero]; mul.wide.u32 %rd5, %r3, {stride * steps * SLOTS};"
        " add.u64 %rd3, %rd3, %rd5;\n"
    )
    cache = "cg" if stride else "ca"  # always the same address: from L1
    step = f"  ld.global.{cache}.u64 %rd6, [%rd3]; and.b64 %rd6, %rd6, %rd4;"
    step += f" add.u64 %rd3, %rd3, %rd6; add.u64 %rd3, %rd3, {stride};\n"
    return probe(setup, step * steps + "  cvt.u32.u64 %r10, %rd3;\n", (".u64 src", ".u64 zero"), settle="%r10")


def one_word(steps: int = 4, load: str = "ld.relaxed.gpu", apart: int = 0, of: int = 0) -> str:
    """Latency of dependent loads by all warps at once (arguments: src, a zero).

    All load the same word, or each warp one that lies `apart` bytes behind that of the warp before, `of` words in all.
    """
    setup = "  ld.param.u64 %rd3, [src]; ld.param.u64 %rd4, [zero];\n"
    if apart:
        setup += "  mov.u32 %r6, %ntid.x; mad.lo.u32 %r6, %r3, %r6, %r0; shr.u32 %r6, %r6, 5;\n"
        setup += f"  rem.u32 %r6, %r6, {of}; mul.wide.u32 %rd5, %r6, {apart}; add.u64 %rd3, %rd3, %rd5;\n"
    step = f"  {load}.global.u64 %rd6, [%rd3]; and.b64 %rd6, %rd6, %rd4; add.u64 %rd3, %rd3, %rd6;\n"
    return probe(setup, step * steps + "  cvt.u32.u64 %r10, %rd3;\n", (".u64 src", ".u64 zero"), settle="%r10")


def parameter_chase(stride: int, steps: int = 16, nbytes: int = 4096) -> str:
    """Latency of dependent loads, `stride` bytes apart, from `nbytes` of parameters (zeros), the same in each slot."""
    setup = "  mov.b64 %rd4, a;\n"
    step = f"  ld.param.u64 %rd6, [%rd3]; add.u64 %rd3, %rd3, %rd6; add.u64 %rd3, %rd3, {stride};\n"
    # The address depends on what was read before: else the loads of a slot, and of all slots, would overlap
    body = "  and.b64 %rd3, %rd3, 0; add.u64 %rd3, %rd3, %rd4;\n" + step * steps + "  cvt.u32.u64 %r10, %rd3;\n"
    return probe(setup + "  mov.b64 %rd3, 0;\n", body, (f".align 8 .b8 a[{nbytes}]",), settle="%r10")


def atomics(space: str, steps: int = 16) -> str:
    """Latency of dependent atomic adds on one word: "global" (argument: its address) or "shared"."""
    if space == "shared":
        setup = "  st.shared.u32 [%r4], 0; bar.sync 0; mov.b32 %r10, 1;\n"
        return probe(setup, "  atom.shared.add.u32 %r10, [%r4], %r10;\n" * steps, settle="%r10")
    setup = "  ld.param.u64 %rd3, [word]; mov.b32 %r10, 1;\n"
    return probe(setup, "  atom.global.add.u32 %r10, [%rd3], %r10;\n" * steps, (".u64 word",), settle="%r10")


def fences(kind: str, steps: int = 16) -> str:
    """Cycles of `steps` fences with nothing outstanding: "acq_rel.gpu", "acq_rel.cta" or "proxy.async.shared::cta"."""
    return probe("", f"  fence.{kind};\n" * steps)


def cta_barrier(steps: int = 16) -> str:
    """Cycles of `steps` bar.sync of the whole CTA."""
    return probe("", "  bar.sync 0;\n" * steps)


def cluster_barrier(steps: int = 16) -> str:
    """Cycles of `steps` barrier.cluster arrives and waits (release, acquire)."""
    return probe("", "  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n" * steps)


def mbarrier_alone(steps: int = 16) -> str:
    """One warp: lane 0 arrives on a barrier of count 1 and the warp waits for the phase, `steps` times."""
    setup = """
  setp.eq.u32 %p1, %r0, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r4], 1;
  bar.sync 0; mov.b32 %r10, 0;
"""
    body = "".join(
        "  @%p1 mbarrier.arrive.shared::cta.b64 _, [%r4];\n"
        + _wait(f"W{i}", "%r4", "%r10")
        + "  xor.b32 %r10, %r10, 1;\n"
        for i in range(steps)
    )
    return probe(setup, body)


def mbarrier_ready(steps: int = 16) -> str:
    """Cycles of `steps` try_waits on a phase that has completed, each followed by its branch."""
    setup = """
  setp.eq.u32 %p1, %r0, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r4], 1;
  @%p1 mbarrier.arrive.shared::cta.b64 _, [%r4];
  bar.sync 0;
"""
    return probe(setup, "".join(_wait(f"W{i}", "%r4", "0") for i in range(steps)))


def mbarrier_ping_pong(remote: bool, release: str = "", steps: int = 16) -> str:
    """Two warps, or warps of two CTAs of a cluster (remote), hand a token to and fro: 2 * `steps` hand-overs per slot.

    release: "" for the default semantics of mbarrier.arrive, or ".release.cluster".
    """
    who = "%r5" if remote else "%r1"
    arrive = (
        f"mbarrier.arrive{release}.shared::cluster.b64 _, [%r12];"
        if remote
        else "mbarrier.arrive.shared::cta.b64 _, [%r12];"
    )
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if remote else "bar.sync 0;"
    # %r11: the barrier that I wait on, %r12: the one of the other
    mine = (
        "mov.b32 %r11, %r4; xor.b32 %r13, %r5, 1; mapa.shared::cluster.u32 %r12, %r4, %r13;"
        if remote
        else "mad.lo.u32 %r11, %r1, 8, %r4; xor.b32 %r13, %r1, 1; mad.lo.u32 %r12, %r13, 8, %r4;"
    )
    setup = f"""
  setp.eq.u32 %p1, %r0, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r4], 1;
  @%p1 mbarrier.init.shared::cta.b64 [%r4+8], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  {mine}
  {meet}
  mov.b32 %r10, 0; setp.eq.u32 %p2, {who}, 0; setp.eq.u32 %p3, %r2, 0; and.pred %p4, %p2, %p3; not.pred %p5, %p2;
  and.pred %p5, %p5, %p3;
"""
    step = "".join(
        f"  @%p4 {arrive}\n" + _wait(f"W{i}", "%r11", "%r10") + f"  xor.b32 %r10, %r10, 1;\n  @%p5 {arrive}\n"
        for i in range(steps)
    )
    body = f"  {meet}\n{CLOCK.format('%rd44')}{step}" if remote else step
    return probe(setup, body, finish=f"  {meet}")


def copy_latency(copy: str, nbytes: int, resident: bool, touched: bool = False, together: bool = False) -> str:
    """Latency of a load into shared memory, from its issue to the wait that sees it, at SLOTS different addresses.

    copy: "bulk" (argument: pointer; slot i of CTA c starts at (c * SLOTS + i) * nbytes) or "tensor" (u8 map with a box
    of 128 B x nbytes/128 rows, dense tensor of 128-byte rows). resident: prefetched to L2 first, else as it is found.
    touched: the CTA has loaded its very last bytes before, which lie in the same page of 2 MiB or the next one.
    together: all CTAs issue a slot's load at the same time, by %globaltimer.
    """
    tensor = copy == "tensor"
    source = "mov.b64 %rd3, src; cvta.param.u64 %rd3, %rd3;" if tensor else "ld.param.u64 %rd3, [src];"
    row = f"mul.lo.u32 %r20, %r3, {SLOTS * nbytes // 128}; mov.b32 %r21, 0;"
    place = row if tensor else f"mul.wide.u32 %rd4, %r3, {SLOTS * nbytes}; add.u64 %rd3, %rd3, %rd4;"
    fetch = (
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd3, {%r21, %r20}];"
        if tensor
        else f"cp.async.bulk.prefetch.L2.global [%rd3], {nbytes};"
    )
    load = (
        f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.{TRANSACTION}"
        f" [%r4+{RING}], [%rd3, {{%r21, %r20}}], [%r4];"
        if tensor
        else f"cp.async.bulk.shared::cluster.global.{TRANSACTION} [%r4+{RING}], [%rd3], {nbytes}, [%r4];"
    )
    step = f"add.u32 %r20, %r20, {nbytes // 128};" if tensor else f"add.u64 %rd3, %rd3, {nbytes};"
    setup = f"""
  {source}
  {place}
  setp.eq.u32 %p1, %r0, 0;
  {"@%p1 prefetch.tensormap [%rd3];" if tensor else ""}
  @%p1 mbarrier.init.shared::cta.b64 [%r4], 1;
  bar.sync 0; mov.b32 %r10, 0;
"""
    if touched:
        setup += (
            f"  ld.global.u32 %r24, [%rd3+{SLOTS * nbytes - 4}]; setp.eq.u32 %p9, %r24, 0x7fabcdef; @%p9 bra OUT;\n"
        )
    warm = f"  @%p1 {fetch}\n{_spin(6000, 'FETCHING')}{CLOCK.format('%rd44')}" if resident else ""
    if together:
        warm += (
            "  mov.u64 %rd30, %globaltimer; or.b64 %rd31, %rd30, 16383;\n"
            "MEET: mov.u64 %rd30, %globaltimer; setp.le.u64 %p8, %rd30, %rd31; @%p8 bra MEET;\n" + CLOCK.format("%rd44")
        )
    body = f"""{warm}
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {nbytes};
  @%p1 {load}
{_wait("ARRIVED", "%r4", "%r10")}
"""
    param = ".align 64 .b8 src[128]" if tensor else ".u64 src"
    return probe(setup, body, (param,), step=f"  xor.b32 %r10, %r10, 1; {step}")


def ring_fill(stages: int, chunk: int) -> str:
    """A kernel's first loads: `stages` bulk copies of `chunk` bytes, issued at once by a thread, each with a barrier.

    Arguments: out, src; CTA c begins at c * stages * chunk. Cycles from before the first copy until each has arrived.
    """
    issue = f"""
  mov.b32 %r20, 0; mov.b32 %r21, %r4; add.u32 %r22, %r4, {RING};
  .pragma "nounroll";
ISSUE:
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r21], {chunk};
  cp.async.bulk.shared::cluster.global.{TRANSACTION} [%r22], [%rd3], {chunk}, [%r21];
  add.u32 %r21, %r21, 8; add.u32 %r22, %r22, {chunk}; add.u64 %rd3, %rd3, {chunk}; add.u32 %r20, %r20, 1;
  setp.lt.u32 %p2, %r20, {stages}; @%p2 bra ISSUE;
"""
    arrived = "".join(
        _wait(f"W{i}", f"%r4+{8 * i}", "0") + CLOCK.format("%rd45") + _write("%rd44", "%rd45") for i in range(stages)
    )
    text = f"""{COMMON}{_out(stages)}
  ld.param.u64 %rd3, [src]; mul.wide.u32 %rd4, %r3, {stages * chunk}; add.u64 %rd3, %rd3, %rd4;
  setp.ne.u32 %p1, %r0, 0; @%p1 bra OUT;
{"".join(f"  mbarrier.init.shared::cta.b64 [%r4+{8 * i}], 1;" for i in range(stages))}
  fence.mbarrier_init.release.cluster;
{CLOCK.format("%rd44")}
{issue}
{arrived}
OUT:
"""
    return _kernel([".u64 out", ".u64 src"], text)


def behind_prefetches(count: int, chunk: int, own: bool) -> str:
    """Latency of a load that waits in the TMA unit behind `count` L2 prefetches of `chunk` bytes.

    It is timed from the first prefetch to the wait that sees the load, at SLOTS different addresses: slot i of CTA c
    starts at (c * SLOTS + i) * (count or 1) * chunk of the argument. own: it loads the chunk prefetched first; else 512
    bytes that it has loaded before.
    """
    nbytes, there = (chunk, "%rd3") if own else (512, "%rd5")
    share = max(count, 1) * chunk
    load = f"cp.async.bulk.shared::cluster.global.{TRANSACTION} [%r4+{RING}], [{{}}], {{}}, [%r4];"
    expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {};"
    setup = f"""
  ld.param.u64 %rd3, [src]; mul.wide.u32 %rd4, %r3, {SLOTS * share}; add.u64 %rd3, %rd3, %rd4; mov.b64 %rd5, %rd3;
  setp.eq.u32 %p1, %r0, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r4], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  bar.sync 0; mov.b32 %r10, 0;
  @%p1 {expect.format(512)}
  @%p1 {load.format("%rd5", 512)}
{_wait("FIRST", "%r4", "%r10")}
  mov.b32 %r10, 1;
"""
    ahead = f"  @%p1 cp.async.bulk.prefetch.L2.global [%rd6], {chunk}; add.u64 %rd6, %rd6, {chunk};\n" * count
    body = f"""  mov.b64 %rd6, %rd3;
{ahead}
  @%p1 {expect.format(nbytes)}
  @%p1 {load.format(there, nbytes)}
{_wait("ARRIVED", "%r4", "%r10")}
"""
    step = f"  xor.b32 %r10, %r10, 1; add.u64 %rd3, %rd3, {share};\n{_spin(12000, 'FETCHING')}"
    return probe(setup, body, (".u64 src",), step=step)


def store_latency(nbytes: int, wait: str) -> str:
    """Latency of a bulk store of `nbytes` from shared memory (argument: dst), at SLOTS different addresses.

    It is timed until the wait returns: "wait_group.read" (its source was read) or "wait_group" (it is complete).
    """
    setup = f"""
  ld.param.u64 %rd3, [dst]; mul.wide.u32 %rd4, %r3, {SLOTS * nbytes}; add.u64 %rd3, %rd3, %rd4; setp.eq.u32 %p1, %r0, 0;
"""
    body = f"""
  @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r4+{RING}], {nbytes};
  cp.async.bulk.commit_group;
  cp.async.bulk.{wait} 0;
"""
    return probe(setup, body, (".u64 dst",), step=f"  add.u64 %rd3, %rd3, {nbytes};")


def store_issue(width: int, steps: int = 64) -> str:
    """Cycles in which warps issue `steps` st.global of `width` bytes per lane, then bar.sync (argument: dst).

    Each warp stores to lines of its own.
    """
    value = {2: "b16", 4: "b32", 16: "v4.b32"}[width]
    operand = {2: "%h1", 4: "%r10", 16: "{%r10, %r10, %r10, %r10}"}[width]
    setup = f"""
  ld.param.u64 %rd3, [dst]; mov.b32 %r10, %r0; cvt.u16.u32 %h1, %r0;
  mul.lo.u32 %r11, %r1, {32 * width * steps}; mad.lo.u32 %r11, %r2, {width}, %r11; cvt.u64.u32 %rd4, %r11;
  mov.u32 %r12, %ntid.x; mul.lo.u32 %r12, %r12, {width * steps * SLOTS}; mul.wide.u32 %rd5, %r3, %r12;
  add.u64 %rd3, %rd3, %rd4; add.u64 %rd3, %rd3, %rd5; div.u32 %r12, %r12, {SLOTS}; cvt.u64.u32 %rd6, %r12;
"""
    body = "".join(f"  st.global.{value} [%rd3+{32 * width * i}], {operand};\n" for i in range(steps))
    return probe(setup, body, (".u64 dst",), step="  add.u64 %rd3, %rd3, %rd6;", together=True)


def scattered_stores(width: int, steps: int = 64, pitch: int = 8192) -> str:
    """Cycles in which warps issue `steps` st.global, each lane along a row of its own, then bar.sync.

    So an epilogue without shared memory stores. Argument: dst, threads * pitch bytes per CTA.
    """
    value = {2: "b16", 16: "v4.b32"}[width]
    operand = {2: "%h1", 16: "{%r10, %r10, %r10, %r10}"}[width]
    setup = f"""
  ld.param.u64 %rd3, [dst]; mov.b32 %r10, %r0; cvt.u16.u32 %h1, %r0; mov.u32 %r12, %ntid.x;
  mad.lo.u32 %r11, %r3, %r12, %r0; mul.wide.u32 %rd4, %r11, {pitch}; add.u64 %rd3, %rd3, %rd4;
"""
    body = "".join(f"  st.global.{value} [%rd3+{width * i}], {operand};\n" for i in range(steps))
    return probe(setup, body, (".u64 dst",), step=f"  add.u64 %rd3, %rd3, {width * steps};", together=True)


def shared_issue(kind: str, steps: int = 32, ways: int = 1) -> str:
    """Cycles in which warps issue `steps` accesses to shared memory, then bar.sync.

    kind: "stmatrix" (x4), "st.v4", "st", "ld" or "ld.v4"; loads have also arrived. ways: lanes of "st" and "ld" that
    want different words of one bank; the others do not conflict.
    """
    line = {
        "stmatrix": "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%r20+{}], {{%r10, %r11, %r12, %r13}};",
        "st.v4": "st.shared.v4.b32 [%r20+{}], {{%r10, %r11, %r12, %r13}};",
        "st": "st.shared.b32 [%r21+{}], %r10;",
        "ld": "ld.shared.b32 %r40, [%r21+{}]; xor.b32 %r45, %r45, %r40;",
        "ld.v4": "ld.shared.v4.b32 {{%r40, %r41, %r42, %r43}}, [%r20+{}]; lop3.b32 %r45, %r45, %r40, %r41, 0x96;"
        " lop3.b32 %r45, %r45, %r42, %r43, 0x96;",
    }[kind]
    setup = _SEEDS + "  mad.lo.u32 %r20, %r0, 16, %r4; mad.lo.u32 %r21, %r0, 4, %r4; mov.b32 %r45, 0;\n"
    if ways > 1:  # lanes 0 .. 32/ways - 1 one word after the other, the next ones 128 bytes, all banks, on
        setup += f"  rem.u32 %r22, %r2, {32 // ways}; div.u32 %r23, %r2, {32 // ways}; mad.lo.u32 %r21, %r22, 4, %r4;\n"
        setup += "  mad.lo.u32 %r21, %r23, 128, %r21; mad.lo.u32 %r21, %r1, 4096, %r21;\n"
    pitch = 512 if ways == 1 else 4
    body = "".join(f"  {line.format(pitch * i)}\n" for i in range(steps))
    return probe(setup, body, settle="%r45", together=True)


def clock_rate(cycles: int = 2_000_000) -> str:
    """A kernel that stores the nanoseconds of %globaltimer while clock64 advances by `cycles`, in 8 slots."""
    body = f"""{COMMON}{_out(SLOTS)}
  mov.b32 %r92, 0;
.pragma "nounroll";
AGAIN:
  mov.u64 %rd10, %globaltimer;
{_spin(cycles, "SPIN")}
  mov.u64 %rd11, %globaltimer;
{_write("%rd10", "%rd11")}
  add.u32 %r92, %r92, 1; setp.lt.u32 %p10, %r92, {SLOTS};
  @%p10 bra AGAIN;
"""
    return _kernel([".u64 out"], body)


MAP_BOX = 8192  # bytes: 128 B x 64 rows, of map i at byte i * MAP_BOX of the source


def map_use(maps: int, where: str, prefetch: bool) -> str:
    """Cycles of the first and the second use of `maps` tensor maps by one thread, one after the other: out[2][maps].

    Arguments: out, the maps (where="param": by value; "global": pointer to them), src. The boxes are in L2.
    prefetch: prefetch.tensormap of all maps 6000 cycles ahead.
    """
    param = f".align 64 .b8 maps[{128 * maps}]" if where == "param" else ".u64 maps"
    address = "mov.b64 %rd3, maps; cvta.param.u64 %rd3, %rd3;" if where == "param" else "ld.param.u64 %rd3, [maps];"
    ahead = "prefetch.tensormap [%rd5];" if prefetch else ""
    body = f"""{COMMON}{_out(2 * maps)}
  {address}
  setp.ne.u32 %p1, %r0, 0;
  @%p1 bra DONE;
  mbarrier.init.shared::cta.b64 [%r4], 1; fence.mbarrier_init.release.cluster; mov.b32 %r10, 0;
  ld.param.u64 %rd4, [src]; mov.b64 %rd5, %rd3; mov.b32 %r11, 0;
FETCH: cp.async.bulk.prefetch.L2.global [%rd4], {MAP_BOX};
  {ahead}
  add.u64 %rd4, %rd4, {MAP_BOX}; add.u64 %rd5, %rd5, 128;
  add.u32 %r11, %r11, 1; setp.lt.u32 %p2, %r11, {maps};
  @%p2 bra FETCH;
{_spin(6000, "FETCHING")}
  mov.b32 %r12, 0;
.pragma "nounroll";
PASS: mov.b32 %r11, 0; mov.b64 %rd5, %rd3;
.pragma "nounroll";
NEXT:
{CLOCK.format("%rd44")}
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {MAP_BOX};
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.{TRANSACTION} [%r4+{RING}], [%rd5, {{0, 0}}], [%r4];
{_wait("ARRIVED", "%r4", "%r10")}
{CLOCK.format("%rd45")}
{_write("%rd44", "%rd45")}
  xor.b32 %r10, %r10, 1; add.u64 %rd5, %rd5, 128;
  add.u32 %r11, %r11, 1; setp.lt.u32 %p2, %r11, {maps};
  @%p2 bra NEXT;
  add.u32 %r12, %r12, 1; setp.lt.u32 %p2, %r12, 2;
  @%p2 bra PASS;
DONE:
"""
    return _kernel([".u64 out", param, ".u64 src"], body)


EDIT_ROUNDS = 4
COLD = 8 * MAP_BOX
IN_FLIGHT = 16384  # bytes of each copy that is under way during an edit


def map_edit(updates: int, in_flight: int = 0, other_warp: bool = False) -> str:
    """A kernel whose warp edits `updates` tensor maps in shared memory, publishes them and loads through them.

    Arguments: out, base map (by value, box MAP_BOX), room for 128 * updates bytes of maps per CTA, src. EDIT_ROUNDS
    rounds of five values: cycles until all address and dimension fields are replaced, until tensormap.cp_fenceproxy of
    all, until the acquire fences of all, until a load through each has arrived, and of a second load through each.
    in_flight: bulk copies of IN_FLIGHT bytes that the warp's first lane, or that of another warp, issues right before,
    from a further argument, behind its first COLD bytes and an address never twice.
    """
    each = range(updates)
    params = [".u64 out", ".align 64 .b8 base[128]", ".u64 room", ".u64 src"]
    busy = settled = meet = place = ""
    if in_flight:
        params.append(".u64 cold")
        ring, barrier = RING + MAP_BOX + 128 * updates, "%r4+8"
        who = "%p3" if other_warp else "%p1"
        busy = (
            f"  @{who} mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {in_flight * IN_FLIGHT};\n"
            + "".join(
                f"  @{who} cp.async.bulk.shared::cluster.global.{TRANSACTION}"
                f" [%r4+{ring + i * IN_FLIGHT}], [%rd10], {IN_FLIGHT}, [{barrier}];"
                f" add.u64 %rd10, %rd10, {IN_FLIGHT};\n"
                for i in range(in_flight)
            )
        )
        settled = _wait("LANDED", barrier, "%r11") + "  xor.b32 %r11, %r11, 1;\n"
        meet = "  bar.sync 0;\n"
        place = f"add.u64 %rd10, %rd10, %rd7; add.u64 %rd10, %rd10, {COLD}; setp.eq.u32 %p3, %r0, 32; mov.b32 %r11, 0;"
    templates = "".join(f"  @%p2 st.shared.b64 [%r20+{RING + MAP_BOX + 128 * u}], %rd6;\n" for u in each)
    replaced = "".join(
        f"""  @%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r4+{RING + MAP_BOX + 128 * u}], %rd8;
  @%p1 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r4+{RING + MAP_BOX + 128 * u}], 0, 128;
  @%p1 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r4+{RING + MAP_BOX + 128 * u}], 1, %r21;
  add.u64 %rd8, %rd8, {MAP_BOX};
"""
        for u in each
    )
    published = "".join(
        "  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
        f" [%rd4+{128 * u}], [%r4+{RING + MAP_BOX + 128 * u}], 128;\n"
        for u in each
    )
    acquired = "".join(
        f"  add.u64 %rd9, %rd4, {128 * u}; fence.proxy.tensormap::generic.acquire.gpu [%rd9], 128;\n" for u in each
    )
    loaded = f"  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {MAP_BOX * updates};\n" + "".join(
        f"  add.u64 %rd9, %rd4, {128 * u};\n"
        f"  @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.{TRANSACTION}"
        f" [%r4+{RING}], [%rd9, {{0, 0}}], [%r4];\n"
        for u in each
    )
    clocks = [f"%rd{20 + i}" for i in range(6)]
    body = f"""{COMMON}{_out(5 * EDIT_ROUNDS)}
  mov.b64 %rd3, base; ld.param.u64 %rd4, [room]; ld.param.u64 %rd5, [src];
  mul.wide.u32 %rd7, %r3, {128 * updates}; add.u64 %rd4, %rd4, %rd7;
  setp.eq.u32 %p1, %r0, 0; setp.lt.u32 %p2, %r0, 16;
  @%p1 mbarrier.init.shared::cta.b64 [%r4], 1;
  @%p1 mbarrier.init.shared::cta.b64 [%r4+8], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  {f"ld.param.u64 %rd10, [cold]; mul.wide.u32 %rd7, %r3, {in_flight * IN_FLIGHT * EDIT_ROUNDS};" if in_flight else ""}
  {place}
  mul.wide.u32 %rd7, %r0, 8; add.u64 %rd3, %rd3, %rd7;
  mad.lo.u32 %r20, %r0, 8, %r4;
  @%p2 ld.param.b64 %rd6, [%rd3];
{templates}
  @%p1 cp.async.bulk.prefetch.L2.global [%rd5], {MAP_BOX * updates * EDIT_ROUNDS};
{_spin(6000, "FETCHING")}
  bar.warp.sync 0xffffffff;
  mov.b32 %r10, 0; mov.b32 %r92, 0; mov.b64 %rd8, %rd5;
.pragma "nounroll";
AGAIN:
  add.u32 %r21, %r92, 64;
{meet}{busy}{meet}{"  setp.ne.u32 %p4, %r1, 0; @%p4 bra NEXT;" if other_warp else ""}
{CLOCK.format(clocks[0])}{replaced}  bar.warp.sync 0xffffffff;
{CLOCK.format(clocks[1])}{published}{CLOCK.format(clocks[2])}{acquired}{CLOCK.format(clocks[3])}{loaded}
{_wait("ARRIVED", "%r4", "%r10")}
{CLOCK.format(clocks[4])}  xor.b32 %r10, %r10, 1;
{loaded}
{_wait("AGAIN_ARRIVED", "%r4", "%r10")}
{CLOCK.format(clocks[5])}  xor.b32 %r10, %r10, 1;
{"".join(_write(a, b) for a, b in zip(clocks, clocks[1:]))}
{"NEXT:" if other_warp else ""}
{settled}
  add.u32 %r92, %r92, 1; setp.lt.u32 %p10, %r92, {EDIT_ROUNDS};
  @%p10 bra AGAIN;
"""
    return _kernel(params, body)
