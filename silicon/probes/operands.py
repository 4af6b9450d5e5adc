"""Measures how Hopper's shared memory is shared between wgmma's operand reads, TMA copies and warps' accesses.

    python3 -m silicon.probes.operands        on an H200, with NumPy and libcuda.so.1; prints JSON

One CTA. A warpgroup issues wgmma.mma_async (f16, m64nNk16, A and B in shared memory, PTX ISA 9.7.15) in groups of 8;
one more warp copies 16 KiB chunks from L2 into a ring of four, and four more store to shared memory without conflicts,
or one of them does one thing after the other: loads a word whose address is the word before, waits on a barrier whose
phase is complete, copies 8 KiB to global memory and waits until they were read. Each is measured alone, then the tensor
core beside one of the others, which go on for longer: cycles of an instruction, bytes a cycle. One wgmma reads 64 x 32
bytes of A and N x 32 bytes of B. README.md has what came out.
"""

import json
import sys

import numpy as np

from silicon import command
from silicon.cuda_driver import SM_90A, Gpu

CHUNK, STAGES, GROUP = 16384, 4, 8
OPERANDS = 1024  # shared offset of A; B follows 8 KiB on
RING = OPERANDS + 8192 + 16384
SCRATCH = RING + STAGES * CHUNK
SHARED = SCRATCH + 16384


BODIES = {  # what the last warps do in a round: (PTX, how often)
    "stores": ("".join(f"  st.shared.v4.b32 [at+{2048 * i}], {{r4, r4, r4, r4}};\n" for i in range(8)), 8),
    "ld.shared": ("  ld.shared.u32 at, [at];\n" * 8, 8),
    "try_wait": (
        "".join(f"W{i}: mbarrier.try_wait.parity.shared::cta.b64 p, [r4+32], 0; @!p bra W{i};\n" for i in range(8)), 8
    ),
    "bulk store": (
        "  @q cp.async.bulk.global.shared::cta.bulk_group [d], [r12], 8192; cp.async.bulk.commit_group;\n"
        "  cp.async.bulk.wait_group.read 0;\n", 1,
    ),
}  # fmt: skip


def ptx(n: int, others: str) -> str:
    """The kernel for wgmmas of this N beside one of BODIES.

    Arguments: out (u64: cycles of tensor core, copies, others), src, groups, chunks, rounds of the others.
    """
    registers = ", ".join(f"f{i}" for i in range(n // 2))
    wgmma = f"  wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{registers}}}, a, b, q, 1, 1, 0, 0;\n" * GROUP
    one = "" if others == "stores" else "setp.ne.u32 p, r1, 5; @p bra DONE;"
    chase = "st.shared.u32 [at], at;" if others == "ld.shared" else ""
    return f"""{SM_90A}.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 out, .param .u64 src, .param .u32 groups, .param .u32 chunks, .param .u32 rounds)
{{
  .reg .pred p, q; .reg .b32 r<16>, at, stage, phase; .reg .b64 a, b, start, stop, o, s, d; .reg .f32 f<{n // 2}>;
  mov.u32 r0, %tid.x; shr.u32 r1, r0, 5; shfl.sync.idx.b32 r1, r1, 0, 31, 0xffffffff;
  mov.u32 r4, smem; ld.param.u64 o, [out];
  mov.b32 r5, 0; mad.lo.u32 at, r0, 16, r4;
ZERO: st.shared.v4.b32 [at], {{r5, r5, r5, r5}}; add.u32 at, at, {288 * 16}; sub.u32 r6, at, r4;
  setp.lt.u32 p, r6, {SHARED - 16}; @p bra ZERO;
  bar.sync 0;
  setp.eq.u32 q, r0, 0;
  @q mbarrier.init.shared::cta.b64 [r4], 1; @q mbarrier.init.shared::cta.b64 [r4+8], 1;
  @q mbarrier.init.shared::cta.b64 [r4+16], 1; @q mbarrier.init.shared::cta.b64 [r4+24], 1;
  @q mbarrier.init.shared::cta.b64 [r4+32], 1; @q mbarrier.arrive.shared::cta.b64 _, [r4+32];
  fence.proxy.async.shared::cta; fence.mbarrier_init.release.cluster;
  bar.sync 0;
  mov.u64 start, %clock64;
  setp.eq.u32 p, r1, 4; @p bra.uni COPY;
  setp.gt.u32 p, r1, 4; @p bra.uni STORE;
  add.u32 r6, r4, {OPERANDS}; shr.u32 r6, r6, 4; cvt.u64.u32 a, r6; or.b64 a, a, {(1 << 62) | (64 << 32) | (1 << 16)};
  add.u64 b, a, {8192 >> 4};
  setp.eq.u32 q, r0, 1000; ld.param.u32 r7, [groups];
  setp.eq.u32 p, r7, 0; @p bra.uni DONE;
  wgmma.fence.sync.aligned;
MMA:
{wgmma}  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 1;
  sub.u32 r7, r7, 1; setp.ne.u32 p, r7, 0; @p bra.uni MMA;
  wgmma.wait_group.sync.aligned 0;
  mov.u64 stop, %clock64; sub.u64 stop, stop, start;
  setp.eq.u32 p, r0, 0; @p st.global.u64 [o], stop;
  setp.eq.f32 p, f0, 0f3f800000; @p st.global.f32 [o+64], f{n // 2 - 1};
  bra DONE;
COPY:
  and.b32 r2, r0, 31; setp.ne.u32 p, r2, 0; @p bra DONE;
  ld.param.u32 r7, [chunks]; ld.param.u64 s, [src]; mov.b32 stage, 0; mov.b32 phase, 1; mov.b32 r8, 0;
NEXT: setp.ge.u32 p, r8, r7; @p bra DRAIN;
  mad.lo.u32 r9, stage, 8, r4;
  setp.lt.u32 p, r8, {STAGES}; @p bra FREE;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [r9], phase; @!p bra WAIT;
FREE: mbarrier.arrive.expect_tx.shared::cta.b64 _, [r9], {CHUNK};
  mad.lo.u32 r10, stage, {CHUNK}, r4; and.b32 r11, r8, 63; mul.wide.u32 d, r11, {CHUNK}; add.u64 d, d, s;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r10+{RING}], [d], {CHUNK}, [r9];
  add.u32 r8, r8, 1; add.u32 stage, stage, 1; setp.eq.u32 p, stage, {STAGES}; @!p bra NEXT;
  mov.b32 stage, 0; xor.b32 phase, phase, 1; bra NEXT;
DRAIN: setp.eq.u32 p, r7, 0; @p bra DONE;
  mov.b32 r8, 0;
EACH: mad.lo.u32 r9, stage, 8, r4;
LAST: mbarrier.try_wait.parity.shared::cta.b64 p, [r9], phase; @!p bra LAST;
  add.u32 stage, stage, 1; setp.ne.u32 p, stage, {STAGES}; @p bra MORE;
  mov.b32 stage, 0; xor.b32 phase, phase, 1;
MORE: add.u32 r8, r8, 1; setp.lt.u32 p, r8, {STAGES}; @p bra EACH;
  mov.u64 stop, %clock64; sub.u64 stop, stop, start; st.global.u64 [o+8], stop;
  bra DONE;
STORE:
  ld.param.u32 r7, [rounds]; sub.u32 r8, r0, 160; mad.lo.u32 at, r8, 16, r4; add.u32 at, at, {SCRATCH};
  setp.eq.u32 p, r7, 0; @p bra DONE; {one} {chase}
  setp.eq.u32 q, r8, 0; ld.param.u64 d, [src]; add.u32 r12, r4, {SCRATCH};
AGAIN:
{BODIES[others][0]}  sub.u32 r7, r7, 1; setp.ne.u32 p, r7, 0; @p bra AGAIN;
  ld.shared.u32 r9, [r12]; xor.b32 r9, r9, at; setp.eq.u32 p, r9, 0x7fabcdef; @p st.global.u32 [o+64], r9;
  mov.u64 stop, %clock64; sub.u64 stop, stop, start;
  setp.eq.u32 p, r0, 160; @p st.global.u64 [o+16], stop;
DONE: ret;
}}
"""


@command.on_gpu()
def measure() -> None:
    gpu = Gpu()
    out, src = gpu.allocate(4096), gpu.allocate(64 * CHUNK)
    gpu.fill(src, 0, 64 * CHUNK)
    found = {}
    for n in (8, 32, 64, 96, 128, 256):
        found[n] = {"operand bytes": (64 + n) * 32}
        for others, (_, each) in BODIES.items():
            kernel = gpu.kernel(ptx(n, others), shared=SHARED)

            def cycles(groups: int, chunks: int, rounds: int, kernel=kernel) -> list[int]:
                """Cycles of the tensor core, the copies, the others: medians of 9."""
                runs = []
                for _ in range(10):
                    gpu.fill(out, 0, 4096)
                    gpu.launch(kernel, 1, 288, [out, src, groups, chunks, rounds], shared=SHARED)()
                    runs.append(gpu.read(out, 24).view(np.uint64).astype(np.int64))
                return np.median(runs[1:], axis=0).astype(int).tolist()

            groups, chunks, rounds = 256, 256, 512
            if others == "stores":
                found[n] |= {
                    "wgmma alone": cycles(groups, 0, 0)[0] / groups / GROUP,
                    "wgmma beside copies": cycles(groups, 16 * chunks, 0)[0] / groups / GROUP,
                    "wgmma beside stores": cycles(groups, 0, 16 * rounds)[0] / groups / GROUP,
                    "copies alone, B/cycle": chunks * CHUNK / cycles(0, chunks, 0)[1],
                    "copies beside wgmma, B/cycle": chunks * CHUNK / cycles(16 * groups, chunks, 0)[1],
                    "stores alone, B/cycle": rounds * 8 * 2048 / cycles(0, 0, rounds)[2],
                    "stores beside wgmma, B/cycle": rounds * 8 * 2048 / cycles(16 * groups, 0, rounds)[2],
                }  # fmt: skip
                continue
            found[n][f"{others} alone"] = cycles(0, 0, rounds)[2] / rounds / each
            found[n][f"{others} beside wgmma"] = cycles(16 * groups, 0, rounds)[2] / rounds / each
            found[n][f"{others} beside copies"] = cycles(0, 16 * chunks, rounds)[2] / rounds / each
        found[n] = {k: round(v, 1) for k, v in found[n].items()}
        print(n, found[n])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    command.parser(__doc__).parse_args()
    measure()
