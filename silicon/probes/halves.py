"""Measures the halves of Hopper's L2: which SMs are near which half, and what lines of the other one cost.

    python3 -m silicon.probes.halves        on an H200, with NumPy and libcuda.so.1; prints JSON

First each SM in turn loads words that SM 0 has loaded, twice: the latency tells which SMs are in another half than
SM 0, and then in which half each block of 4 KiB is at home. Then SMs copy lists of blocks into shared memory
(cp.async.bulk, PTX ISA 9.7.9.25.4.1, 128 KiB in flight): each SM its own blocks or pairs of SMs the same, in one half
or across; blocks that are near or far, from DRAM or from the L2. Rates are bytes a cycle into all SMs, by the slowest.
README.md has what came out.
"""

import json
import sys

import numpy as np

from silicon import command
from silicon.cuda_driver import SM_90, Gpu, Timer, nvidia_smi
from silicon.probes import ring

BLOCK, STAGES, LONGEST = 4096, 32, 128  # bytes; copies in flight; blocks of a list
RING = 1024
LIST = RING + STAGES * BLOCK
SHARED = LIST + 65536  # one CTA an SM
BLOCKS = 32768

# Arguments: out (u32 [count]: cycles), first, count, stride in bytes, SM. One warp loads a word after the other.
PROBE = SM_90 + """\
.visible .entry kernel(.param .u64 out, .param .u64 at, .param .u32 count, .param .u32 stride, .param .u32 sm)
{
  .reg .pred p; .reg .b32 r<8>, start, stop; .reg .b64 a, o, d;
  mov.u32 r0, %smid; ld.param.u32 r1, [sm]; setp.ne.u32 p, r0, r1; @p bra DONE;
  ld.param.u64 o, [out]; ld.param.u64 a, [at]; ld.param.u32 r2, [count]; ld.param.u32 r3, [stride];
NEXT:
  mov.u32 start, %clock;
  ld.relaxed.gpu.global.u32 r4, [a];
  xor.b32 r6, r4, 0x5bd1e995; setp.eq.u32 p, r6, 0x12345; @p st.volatile.global.u32 [o], r6;
  mov.u32 stop, %clock;
  sub.u32 stop, stop, start; st.global.u32 [o], stop;
  cvt.u64.u32 d, r3; add.u64 a, a, d; add.u64 o, o, 4;
  sub.u32 r2, r2, 1; setp.ne.u32 p, r2, 0; @p bra NEXT;
DONE: ret;
}
"""


def copies(block: int = BLOCK, stages: int = STAGES, who: str = "%smid") -> str:
    """PTX of a kernel whose CTAs each copy a list of blocks into shared memory, `stages` under way.

    Arguments: out (u64 [SM]: cycles), first block, lists (u32 [SM][count]: blocks), count. The list of an SM that
    copies nothing begins with ~0. who: the special register that says whose list a CTA takes.
    """
    return f"""{SM_90}.extern .shared .align 128 .b8 smem[];
.visible .entry kernel(.param .u64 out, .param .u64 at, .param .u64 lists, .param .u32 count)
{{
  .reg .pred p; .reg .b32 r<16>, lane, done, stage, phase, which; .reg .b64 a, o, l, d, start, stop;
  mov.u32 r0, {who}; mov.u32 r1, smem; mov.u32 lane, %tid.x; ld.param.u32 r2, [count]; ld.param.u64 a, [at];
  ld.param.u64 l, [lists]; mul.lo.u32 r6, r0, r2; mul.wide.u32 d, r6, 4; add.u64 l, l, d;
  ld.param.u64 o, [out]; mul.wide.u32 d, r0, 8; add.u64 o, o, d;
  add.u32 which, r1, {LIST}; mov.b32 r3, lane;
LISTS: setp.ge.u32 p, r3, r2; @p bra LISTED;
  mul.wide.u32 d, r3, 4; add.u64 d, d, l; ld.global.u32 r4, [d]; mad.lo.u32 r5, r3, 4, which; st.shared.u32 [r5], r4;
  add.u32 r3, r3, 32; bra LISTS;
LISTED: bar.warp.sync 0xffffffff;
  ld.shared.u32 r4, [which]; setp.eq.u32 p, r4, 0xffffffff; @p bra DONE;
  setp.ne.u32 p, lane, 0; @p bra DONE;
  mov.b32 done, 0;
{ring.begun(stages)}
  mov.b32 done, 0; mov.b32 stage, 0; mov.b32 phase, 1;
  mov.u64 start, %clock64;
NEXT: ld.shared.u32 r4, [which]; add.u32 which, which, 4;
  mad.lo.u32 r5, stage, 8, r1; mad.lo.u32 r6, stage, {block}, r1;
  setp.lt.u32 p, done, {stages}; @p bra FREE;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [r5], phase; @!p bra WAIT;
FREE: mbarrier.arrive.expect_tx.shared::cta.b64 _, [r5], {block};
  mul.wide.u32 d, r4, {block}; add.u64 d, d, a;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r6+{RING}], [d], {block}, [r5];
  add.u32 done, done, 1; add.u32 stage, stage, 1; setp.eq.u32 p, stage, {stages}; @!p bra MORE;
  mov.b32 stage, 0; xor.b32 phase, phase, 1;
MORE: setp.lt.u32 p, done, r2; @p bra NEXT;
{ring.ended(stages)}
  mov.u64 stop, %clock64; sub.u64 stop, stop, start; st.global.u64 [o], stop;
DONE: ret;
}}
"""


COPY = copies()

# Arguments: out (u32 [CTA]: its SM). CTAs stay until all have started.
WHERE = SM_90 + """.visible .entry kernel(.param .u64 out)
{
  .reg .b32 sm, cta; .reg .b64 o, d, start, now; .reg .pred p;
  mov.u32 sm, %smid; mov.u32 cta, %ctaid.x; ld.param.u64 o, [out]; mul.wide.u32 d, cta, 4; add.u64 o, o, d;
  st.global.u32 [o], sm;
  mov.u64 start, %globaltimer;
STAY: mov.u64 now, %globaltimer; sub.u64 now, now, start; setp.lt.u64 p, now, 20000; @p bra STAY;
  ret;
}
"""


@command.on_gpu()
def measure() -> None:
    gpu = Gpu()
    flush = Timer(gpu).flush
    sms, rng = gpu.attribute(16), np.random.default_rng(0)
    probe, copy, where = (gpu.kernel(text, shared=SHARED) for text in (PROBE, COPY, WHERE))
    data, out = gpu.allocate(BLOCKS * BLOCK), gpu.allocate(1 << 20)
    gpu.write(data, rng.integers(0, 255, BLOCKS * BLOCK, np.uint8))
    found = {"machine": gpu.describe(), "nvidia-smi": nvidia_smi()}

    def latencies(sm: int, first: int, count: int, stride: int = BLOCK) -> np.ndarray:
        """Cycles of `count` loads by an SM, from a block on."""
        gpu.launch(probe, sms, 32, [out, data + first * BLOCK, count, stride, sm], shared=SHARED)()
        return gpu.read(out, 4 * count).view(np.uint32).astype(int)

    def sm_of_ctas(cluster: int) -> np.ndarray:
        gpu.launch(where, sms // cluster * cluster, 32, [out], cluster if cluster > 1 else None, SHARED)()
        return gpu.read(out, 4 * (sms // cluster * cluster)).view(np.uint32)

    flush()
    latencies(0, 0, 32 * sms)
    seen = np.array(
        [(latencies(sm, 32 * sm, 32), latencies(sm, 32 * sm, 32)) for sm in range(sms)]
    )  # [SM, time, block]
    spread = np.sort(seen[:, 0], axis=1)[:, -8]  # half of the blocks are far from an SM of the other half
    half = (spread > (spread.min() + spread.max()) / 2).astype(int)
    others = np.flatnonzero(half).tolist()
    near, far = np.median(seen[half == 0, 0]), np.median(np.sort(seen[others, 0], axis=1)[:, 16:])
    found["cycles of a load: near, far, far again"] = [float(near), float(far), float(np.median(seen[others, 1]))]
    for cluster in (1, 2, 4):
        found[f"half of each CTA, clusters of {cluster}"] = "".join(map(str, half[sm_of_ctas(cluster)]))

    flush()
    latencies(0, 0, 8192, 128)
    by_line = latencies(others[0], 0, 8192, 128) > (near + far) / 2
    edges = np.flatnonzero(by_line[1:] != by_line[:-1]) + 1
    found["bytes between changes of home, at least"] = int(np.gcd.reduce(edges) * 128)
    flush()
    home = []
    for first in range(0, BLOCKS, 8192):
        latencies(0, first, 8192)
        home += (latencies(others[0], first, 8192) < (near + far) / 2).astype(int).tolist()
    home = np.array(home)
    found["home of each block"] = "".join(map(str, home[:64]))

    def launch(table: np.ndarray, base: int = data):
        """A launch that copies a table: int [SM, blocks from `base` on], rows of -1 for SMs that copy nothing."""
        table = np.ascontiguousarray(table, np.int32)
        lists = gpu.allocate(table.nbytes)
        gpu.write(lists, table)
        return gpu.launch(copy, sms, 32, [out, base, lists, table.shape[1]], shared=SHARED)

    def rate(table: np.ndarray, before: list) -> float:
        """Bytes a cycle into all SMs, median of 7, after a fill and the launches `before`."""
        run, rates = launch(table), []
        for _ in range(7):
            gpu.fill(out, 0, 8 * sms)
            flush()
            for each in before:
                each()
            run()
            cycles = gpu.read(out, 8 * sms).view(np.uint64)
            rates.append(np.count_nonzero(cycles) * table.shape[1] * BLOCK / cycles.max())
        return round(float(np.median(rates)))

    def shared_by(groups: list) -> np.ndarray:
        """A random list for each group of SMs, which its SMs all copy."""
        table, blocks = np.full((sms, LONGEST), -1), rng.permutation(BLOCKS)
        for i, group in enumerate(groups):
            table[group] = blocks[i * LONGEST : (i + 1) * LONGEST]
        return table

    def at_home(away: bool, count: int) -> np.ndarray:
        """A random list for each SM, of blocks of its own half, or (`away`) of the other one."""
        table = np.empty((sms, count), int)
        for side in (0, 1):
            blocks = rng.permutation(np.flatnonzero(home == (side ^ away)))
            for i, sm in enumerate(np.flatnonzero(half == side)):
                table[sm] = blocks[i * count : (i + 1) * count]
        return table

    sides = [np.flatnonzero(half == side) for side in (0, 1)]
    within = np.concatenate([side[: len(side) // 2 * 2].reshape(-1, 2) for side in sides])
    # something else is read first, that pushes out what the fill has left to be written
    clean = launch(np.arange(sms * LONGEST).reshape(sms, LONGEST), gpu.allocate(sms * LONGEST * BLOCK))
    rates = {
        "DRAM, each its own": rate(shared_by([[sm] for sm in range(sms)]), [clean]),
        "DRAM, pairs of a half": rate(shared_by(within), [clean]),
        "DRAM, pairs across": rate(shared_by(list(map(list, zip(*sides)))), [clean]),
    }
    for name, away in (("near", False), ("far", True)):
        rates[f"DRAM, {name}"] = rate(at_home(away, 64), [clean])
        table = at_home(away, 32)
        homes = np.empty_like(table)  # who loads them first: SMs where they are at home
        for side in (0, 1):
            rows = sides[side ^ away]
            homes[rows] = table[sides[side]][np.resize(np.arange(len(sides[side])), len(rows))]
        rates[f"L2, {name}"] = rate(table, [clean, launch(homes)])
        rates[f"L2, {name}, again"] = rate(table, [clean, launch(homes), launch(table)])
    found["bytes a cycle into all SMs"] = rates
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    command.parser(__doc__).parse_args()
    measure()
