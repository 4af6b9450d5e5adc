"""Measures which SMs of an H200 slow down with the tensor core of one, for how long, and how fast copies are meanwhile.

    python3 -m silicon.probes.gpc_clock run [FILE]              on an H200, with NumPy and libcuda.so.1
    python3 -m silicon.probes.gpc_clock kernels FOLDER [FILE]   whole kernels: FOLDER of whole_kernels/hopper.py compile

One warpgroup in each of the first `workers` CTAs, one CTA an SM, begins wgmmas (m64nNk16 of f16, PTX ISA 9.7.15) at the
same time; another warp of every SM keeps reading clock64 and %globaltimer (PTX ISA 10); a third may copy 16 KiB after
16 KiB from the L2, four under way. GHz are cycles over ns of all SMs that slow down, by the time since the first wgmma
and since the last one. For whole kernels they are the mean clock of all SMs over 3 launches, from a change of the timer
in a kernel before them to one in a kernel behind them, gaps included.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import SM_90A, Gpu, Timer, nvidia_smi
from silicon.whole_kernels import hopper

from .tensor_clock import OPERANDS, SHARED, SMS, B, contents, fill, group, samples

TABLE = Path(__file__).with_suffix(".json")
ROUNDS, SAMPLES = 5, 256
REST, LONG = 6000, 20_000  # ns: before the first wgmma; of copies, which begin 2000 ns later
FROM_FIRST = (0, 250, 500, 750, 1000, 1250, 1500, 2000, 4000, 16000)  # ns: edges of what is averaged
FROM_LAST = (0, 250, 500, 750, 1000, 1250, 1500, 1750, 2000, 4000)

COPIES = """
  mov.b32 r9, 0; mov.b32 r10, 1;
PRE: mad.lo.u32 r11, r9, 8, r1; mad.lo.u32 r12, r9, 16384, r1; add.u32 r11, r11, 60000; add.u32 r12, r12, 65536;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [r11], 16384;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r12], [m], 16384, [r11];
  add.u64 m, m, 16384;
  add.u32 r9, r9, 1; setp.lt.u32 p, r9, 4; @p bra PRE;
  mov.b32 r9, 0; mov.b32 r10, 0; sub.u64 m, m, 65536;
CP: mad.lo.u32 r11, r9, 8, r1; mad.lo.u32 r12, r9, 16384, r1; add.u32 r11, r11, 60000; add.u32 r12, r12, 65536;
CW: mbarrier.try_wait.parity.shared::cta.b64 p, [r11], r10; @!p bra CW;
  add.u32 r8, r8, 1; mov.u64 now, %globaltimer; setp.ge.u64 p, now, next; @p bra CQ;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [r11], 16384;
  mul.wide.u32 t, r9, 16384; add.u64 t, t, m;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r12], [t], 16384, [r11];
  add.u32 r9, r9, 1; setp.lt.u32 p, r9, 4; @p bra CP;
  mov.b32 r9, 0; xor.b32 r10, r10, 1; bra CP;
CQ:
"""

PROBE = SM_90A + """.extern .shared .align 128 .b8 smem[];
.visible .entry kernel(.param .u64 out)
{ .reg .pred p; .reg .b32 %r<4>; .reg .b64 %rd<8>;
 ld.param.u64 %rd0, [out]; mov.u32 %r0, %smid; mov.u32 %r1, %tid.x;
 mov.u64 %rd1, %globaltimer; mov.u64 %rd6, %rd1;
L: mov.u64 %rd1, %globaltimer; setp.eq.u64 p, %rd1, %rd6; @p bra L;
 mov.u64 %rd2, %clock64;
 mul.wide.u32 %rd3, %r0, 16; add.u64 %rd0, %rd0, %rd3; setp.eq.u32 p, %r1, 0;
 @p st.global.u64 [%rd0], %rd1; @p st.global.u64 [%rd0+8], %rd2; ret; }
"""


@dataclass(frozen=True)
class Work:
    """A load of the tensor cores: `groups` of `count` wgmmas with N = n, each followed by `rest` cycles of pause.

    every: ns between samples of the clock; copies: whether another warp copies from the L2 meanwhile.
    """

    name: str
    groups: int
    workers: int = SMS
    n: int = 128
    count: int = 8
    rest: int = 0
    zeros: bool = False
    every: int = 480
    copies: bool = False
    grid: int = SMS

    @property
    def ptx(self) -> str:
        """The kernel. Its groups, workers and times are parameters."""
        registers = self.n // 2
        steps, wgmmas = group(f"m64n{self.n}k16.f32.f16.f16", self.n, ", 1, 1, 0, 0", self.count)
        clear = "".join(f"  mov.b32 d{i}, 0;\n" for i in range(registers))
        idle = (
            f"  mov.u64 now, %clock64; add.u64 t, now, {self.rest};\n"
            "IDLE: mov.u64 now, %clock64; setp.lt.u64 p, now, t; @p bra.uni IDLE;\n"
        )
        return f"""{SM_90A}.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 out, .param .u64 src, .param .u32 groups, .param .u32 workers,
  .param .u32 every, .param .u32 rest0, .param .u32 dur, .param .u64 mem)
{{
  .reg .pred p, q; .reg .b32 r<16>, x, y, z, w, smid;
  .reg .b64 a<4>, b<4>, o, s, t, now, next, last, begun, c0, c1, ev, m, w0;
  .reg .f32 d<{max(registers, 32)}>;
  mov.u32 r0, %tid.x; mov.u32 r1, smem; mov.u32 r2, %ctaid.x; mov.u32 smid, %smid;
  ld.param.u64 s, [src]; ld.param.u64 o, [out];
  mul.wide.u32 t, smid, {16 * (SAMPLES + 4)}; add.u64 o, o, t;
{fill(192)}  setp.eq.u32 p, r0, 0; mov.u32 r5, 60000; add.u32 r5, r5, r1;
  @p mbarrier.init.shared::cta.b64 [r5], 1; @p mbarrier.init.shared::cta.b64 [r5+8], 1;
  @p mbarrier.init.shared::cta.b64 [r5+16], 1; @p mbarrier.init.shared::cta.b64 [r5+24], 1;
  fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta; bar.sync 0;
  mov.u64 begun, %globaltimer;
  setp.ge.u32 p, r0, 160; @p bra.uni MEM;
  setp.ge.u32 p, r0, 128; @p bra.uni SAMPLE;
  ld.param.u32 r6, [workers]; setp.ge.u32 p, r2, r6; @p bra.uni DONE;
  ld.param.u32 r6, [rest0]; cvt.u64.u32 t, r6;
  add.u64 next, begun, t;
STAY: mov.u64 now, %globaltimer; setp.lt.u64 p, now, next; @p bra STAY;
  shr.u32 r5, r1, 4; cvt.u64.u32 a0, r5; or.b64 a0, a0, {1 << 62 | 64 << 32 | 1 << 16}; add.u64 b0, a0, {B >> 4};
{steps}{clear}
  setp.ne.u32 q, r0, 10000; ld.param.u32 r6, [groups];
  mov.u64 c0, %clock64; mov.u64 last, %globaltimer;
AGAIN:
  wgmma.fence.sync.aligned;
{wgmmas}  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned {0 if self.rest else 1};
{idle if self.rest else ""}  sub.u32 r6, r6, 1; setp.ne.u32 p, r6, 0; @p bra.uni AGAIN;
  wgmma.wait_group.sync.aligned 0;
  mov.u64 c1, %clock64; sub.u64 c1, c1, c0; mov.u64 now, %globaltimer;
  setp.eq.u32 p, r0, 0; @p st.global.v2.u64 [o], {{c1, now}}; @p st.global.u64 [o+16], last;
  setp.eq.f32 p, d0, 0f3f800001; @p st.global.b32 [o+8], d{registers - 1};
  @p st.global.b32 [o+8], d{min(registers, 32) - 3};
  bra.uni DONE;
SAMPLE:
  setp.ne.u32 p, r0, 128; @p bra DONE;
  ld.param.u32 r6, [every]; cvt.u64.u32 ev, r6; add.u64 o, o, 48;
{samples(SAMPLES, "ev")}  bra DONE;
MEM:
  setp.ne.u32 p, r0, 160; @p bra DONE;
  ld.param.u64 m, [mem]; mul.wide.u32 t, r2, 65536; add.u64 m, m, t;
  ld.param.u32 r6, [rest0]; add.u32 r6, r6, 2000; cvt.u64.u32 t, r6; add.u64 next, begun, t;
MS: mov.u64 now, %globaltimer; setp.lt.u64 p, now, next; @p bra MS;
  ld.param.u32 r6, [dur]; cvt.u64.u32 t, r6; add.u64 next, now, t; mov.b32 r8, 0;
  mov.u64 last, now; mov.u64 c0, %clock64;
{COPIES if self.copies else ""}
  mov.u64 c1, %clock64; mov.u64 now, %globaltimer; sub.u64 c1, c1, c0; sub.u64 now, now, last; cvt.u64.u32 t, r8;
  st.global.u64 [o+24], t; st.global.v2.u64 [o+32], {{c1, now}};
DONE: ret;
}}
"""


def works() -> list[Work]:
    """All loads that are measured."""
    found = [Work(f"short {g} groups", g, every=224) for g in (1, 4, 16, 64)]
    found += [Work(f"short {g} groups zeros", g, zeros=True, every=224) for g in (4, 64)]
    found += [Work(f"{workers} workers", 150, workers) for workers in (1, 2, 8, SMS)]
    rests = ((64, 256), (64, 1024), (64, 3000), (128, 512), (128, 1024), (256, 512), (256, 1024), (256, 2048))
    found += [Work(f"n{n} rest {rest}", max(4, 120000 // (n * 4 + rest)), n=n, rest=rest) for n, rest in rests]
    found += [Work(f"n64 x{count} rest 2000", 50, n=64, count=count, rest=2000) for count in (1, 2)]
    for workers, grid in ((0, SMS), (SMS, SMS), (0, 1), (1, 1)):
        for zeros in (False, True) if workers else (False,):
            name = f"copies, {workers} workers, {grid} CTAs" + " zeros" * zeros
            found.append(Work(name, 150, workers, zeros=zeros, copies=True, grid=grid))
    return found


def summary(work: Work, first, steps, head) -> dict:
    """Reduce a load's samples to what the recording keeps: GHz around its wgmmas, or cycles and ns of a copy.

    first: int64 [round, SM, (clock, ns)] of the first sample; steps: [round, SM, sample, (cycles, ns)] from sample to
    sample; head: what a CTA wrote before its samples, int64 [round, SM, 3, 2].
    """
    steps = steps.astype(np.int64)
    if work.copies:
        count, cycles, ns = head[:, :, 1, 1], head[:, :, 2, 0], head[:, :, 2, 1]
        did = count > 0
        return {what: round(float(np.median((x[did] / count[did]))), 1) for what, x in (("cycles", cycles), ("ns", ns))}
    when = first[:, :, None, 1] + np.cumsum(steps[..., 1], 2) - steps[..., 1] // 2
    on = head[:, :, 0, 0] > 0
    begun, ended = (np.array([np.median(x[r][on[r]]) for r in range(len(on))])[:, None, None]
                    for x in (head[:, :, 1, 0], head[:, :, 0, 1]))  # fmt: skip

    def ghz(low, high, which) -> float | None:
        chosen = which & (when >= low) & (when < high) & (steps[..., 1] > 0)
        cycles, ns = (steps[..., i][chosen].sum() for i in (0, 1))
        return round(float(cycles / ns), 3) if ns else None

    everywhere = np.ones(steps.shape[:3], bool)
    long = float(np.median(ended - begun))
    mine = [ghz(begun + 250, ended, everywhere & (np.arange(steps.shape[1]) == sm)[None, :, None]) for sm in range(SMS)]
    slow = [sm for sm, x in enumerate(mine) if x is not None and x < 1.9]
    slowed = everywhere & np.isin(np.arange(steps.shape[1]), slow)[None, :, None]
    return {
        "SMs that slow down": slow if len(slow) < SMS else "all",
        "ns": long,
        "before": ghz(begun - 3000, begun - 500, everywhere),
        "from the first wgmma": [
            ghz(begun + low, begun + high, slowed) for low, high in zip(FROM_FIRST, FROM_FIRST[1:]) if high <= long
        ],
        "from the last": [ghz(ended + low, ended + high, slowed) for low, high in zip(FROM_LAST, FROM_LAST[1:])],
    }


def write_entries(file: Path, machine: dict, what: str, found: dict) -> None:
    """Puts `found` under the key `what` into a JSON file, one line an entry; other keys stay."""
    known = json.loads(file.read_text()) if file.exists() else {}
    known |= {f"machine, {what}": machine, what: found}
    parts = []
    for key, value in known.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(x)}" for name, x in value.items())
        parts.append(f" {json.dumps(key)}: {{\n{lines}\n }}")
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def measure_works(file: Path) -> None:
    """Measures all loads and adds them to the file."""
    gpu, found, smi = Gpu(), {}, [nvidia_smi()]
    flush, size = Timer(gpu).flush, 16 * (SAMPLES + 4)
    out, src, data = gpu.allocate(SMS * size), gpu.allocate(OPERANDS), gpu.allocate(SMS * 65536)
    gpu.fill(data, 0, SMS * 65536)
    for work in works():
        gpu.write(src, contents("f16", "zeros" if work.zeros else "noise"))
        kernel, seen = gpu.kernel(work.ptx, shared=SHARED), []
        args = [out, src, work.groups, work.workers, work.every, REST, LONG, data]
        launch = gpu.launch(kernel, work.grid, 192, args, shared=SHARED)
        for _ in range(ROUNDS):
            gpu.fill(out, 0, SMS * size)
            if not work.copies:
                flush()
            launch()
            seen.append(gpu.read(out, SMS * size).view(np.int64).reshape(SMS, SAMPLES + 4, 2))
        seen = np.array(seen[1:])
        found[work.name] = summary(work, seen[:, :, 4], np.diff(seen[:, :, 4:], axis=2), seen[:, :, :3])
    write_entries(file, gpu.describe() | {"nvidia-smi": [*smi, nvidia_smi()]}, "works", found)


def kernels(folder: Path, file: Path) -> None:
    """Measures the clock during the whole kernels of a folder, cold and warm, and adds it to the file."""
    gpu = Gpu()
    timer, probe, found, smi = Timer(gpu), gpu.kernel(PROBE, shared=SHARED), {}, [nvidia_smi()]
    marks = [gpu.allocate(4096) for _ in range(2)]
    before, behind = (gpu.launch(probe, SMS, 32, [mark], shared=SHARED) for mark in marks)

    def clock(launches: list, first: tuple) -> float:
        rounds = []
        for _ in range(20):
            gpu.launch(timer.spin, 1, 1, [timer.SPIN_NS * (len(launches) + 4)])()
            for each in (*first, before, *launches, behind):
                each()
            start, stop = (gpu.read(mark, SMS * 16).view(np.int64).reshape(SMS, 2) for mark in marks)
            passed = stop - start
            rounds.append(passed[:, 1].sum() / passed[:, 0].sum())
        return round(float(np.median(rounds)), 4)

    for name, x in json.loads((folder / "launches.json").read_text()).items():
        if name.endswith("compare"):
            continue
        kernel = gpu.kernel((folder / f"{x['image']}.cubin").read_bytes(), x["kernel"], x["shared"])
        kind, prepared, held = name.split("/")[0].split()[-1], [], []
        for _ in range(hopper.LAUNCHES):
            addresses = [gpu.allocate(t["bytes"]) for t in x["tensors"]]
            for address, content in zip(addresses, hopper.contents(x, addresses, kind), strict=True):
                gpu.write(address, content)
            params = hopper.patched(base64.b64decode(x["params"]), x["moves"], addresses)
            args = [params[at : at + size] for at, size in x["parameters"]]
            shape = tuple(x["grid"]), tuple(x["block"])
            prepared.append(gpu.launch(kernel, *shape, args, tuple(x["cluster"] or ()), x["shared"], x["pdl"]))
            held += addresses
        prepared[0]()
        gpu.sync()
        cold = clock(prepared, (timer.flush,))
        found[name] = {"cold": cold, "warm": clock(prepared[:1] * hopper.LAUNCHES, (timer.flush, prepared[0]))}
        for address in held:
            gpu.free(address)
    write_entries(file, gpu.describe() | {"nvidia-smi": [*smi, nvidia_smi()]}, "kernels", found)


def main() -> None:
    commands = (parser := command.parser(__doc__)).add_subparsers(dest="what", required=True)
    for name in ("run", "kernels"):
        each = commands.add_parser(name)
        if name == "kernels":
            each.add_argument("folder", type=Path, help="where whole_kernels/hopper.py has compiled to")
        each.add_argument("file", nargs="?", type=Path, default=TABLE, help="the recording, which is added to")
    options = parser.parse_args()
    with command.on_gpu():
        kernels(options.folder, options.file) if options.what == "kernels" else measure_works(options.file)


if __name__ == "__main__":
    main()
