"""Measures what the tensor core's work does to the clock of an H200's SMs, and operands other than zero to its rate.

    python3 -m silicon.probes.tensor_clock run [FILE]     on an H200, with NumPy and libcuda.so.1
    python -m silicon.probes.tensor_clock model           the same PTX on the model, beside tensor_clock.json

A warpgroup of each SM repeats groups of 8 wgmma.mma_async (m64, A and B in shared memory, PTX ISA 9.7.15); it may rest
between two groups. Another warp reads clock64 and %globaltimer (PTX ISA 10) every EVERY ns, at a change of the timer,
before the tensor cores begin, meanwhile and when they have ended. A row has the cycles of a wgmma by clock64, and the
SMs' mean GHz, medians of the rounds: before, in each slice of EVERY ns from the first wgmma on, and after.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import SM_90A, Gpu, Timer, nvidia_smi
from silicon.golden.case import noise
from silicon.probes.cycles import allocated

TABLE = Path(__file__).with_suffix(".json")
ROUNDS, SMS = 9, 132
SHARED = 200 << 10  # one CTA an SM
OPERANDS = 48 << 10  # bytes: A of 4 k-steps, then B of them
B = 16 << 10  # where B begins
EVERY, REST = 2000, 20_000  # ns: of a slice; before and after the tensor cores' work
SAMPLES = 64
TYPES = {"f16": (16, "f32"), "e4m3": (8, "f32"), "s8": (8, "s32")}  # bits, accumulator


def group(shape: str, n: int, tail: str, count: int = 8) -> tuple[str, str]:
    """PTX that makes descriptors of k-steps 1 to 3 from the first's, and PTX of `count` wgmmas, on the four in turn."""
    d = ", ".join(f"d{i}" for i in range(n // 2))
    wgmmas = (f"  wgmma.mma_async.sync.aligned.{shape} {{{d}}}, a{i % 4}, b{i % 4}, q{tail};\n" for i in range(count))
    steps = (f"  add.u64 a{i}, a0, {i * 2048 >> 4}; add.u64 b{i}, b0, {i * n * 32 >> 4};\n" for i in range(1, 4))
    return "".join(steps), "".join(wgmmas)


def fill(threads: int) -> str:
    """PTX with which this many threads copy OPERANDS bytes from `s` to shared memory."""
    return f"""  mad.lo.u32 r3, r0, 16, r1; mul.wide.u32 t, r0, 16; add.u64 s, s, t; add.u32 r4, r1, {OPERANDS};
FILL: ld.global.v4.u32 {{x, y, z, w}}, [s]; st.shared.v4.u32 [r3], {{x, y, z, w}};
  add.u64 s, s, {threads * 16}; add.u32 r3, r3, {threads * 16}; setp.lt.u32 p, r3, r4; @p bra FILL;
"""


def samples(count: int, every: int | str) -> str:
    """PTX that stores samples (clock64, ns) behind `o`, each at the timer's first change `every` ns after the last."""
    return f"""  mov.b32 r7, 0; mov.u64 next, begun;
MORE: mov.u64 last, %globaltimer;
EDGE: mov.u64 now, %globaltimer; setp.eq.u64 p, now, last; @p bra EDGE;
  setp.lt.u64 p, now, next; @p bra MORE;
  mov.u64 c0, %clock64;
  add.u64 o, o, 16; st.global.v2.u64 [o], {{c0, now}};
  add.u64 next, now, {every};
  add.u32 r7, r7, 1; setp.lt.u32 p, r7, {count}; @p bra MORE;
"""


@dataclass(frozen=True)
class Load:
    """A load of the tensor cores: wgmmas of a type and N, on "noise" or "zeros", by this many SMs.

    us: how long it takes, about; rest: cycles between two groups.
    """

    kind: str
    n: int
    data: str = "noise"
    sms: int = SMS
    us: int = 60
    rest: int = 0

    @property
    def name(self) -> str:
        return (
            f"{self.kind} n{self.n} {self.data}, {self.sms} SMs, {self.us} us"
            + f", {self.rest} cycles between groups" * (self.rest > 0)
        )

    @property
    def groups(self) -> int:
        return max(1, round(self.us * 1980 / (8 * self.n / 2 + self.rest)))

    @property
    def ptx(self) -> str:
        bits, d = TYPES[self.kind]
        registers = self.n // 2
        tail = ", 1, 1, 0, 0" if bits == 16 else ", 1, 1" if self.kind == "e4m3" else ""
        steps, wgmmas = group(f"m64n{self.n}k{256 // bits}.{d}.{self.kind}.{self.kind}", self.n, tail)
        clear = "".join(f"  mov.b32 d{i}, 0;\n" for i in range(registers))
        rest = (
            f"  mov.u64 now, %clock64; add.u64 t, now, {self.rest};\n"
            "  wgmma.wait_group.sync.aligned 0;\nIDLE: mov.u64 now, %clock64; setp.lt.u64 p, now, t; @p bra.uni IDLE;\n"
            if self.rest
            else ""
        )
        return f"""{SM_90A}.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 out, .param .u64 src, .param .u32 groups)
{{
  .reg .pred p, q; .reg .b32 r<16>, x, y, z, w; .reg .b64 a<4>, b<4>, o, s, t, now, next, last, begun, c0, c1;
  .reg .{"f32" if d == "f32" else "b32"} d<{registers}>;
  mov.u32 r0, %tid.x; mov.u32 r1, smem; mov.u32 r2, %ctaid.x; ld.param.u64 s, [src]; ld.param.u64 o, [out];
  mul.wide.u32 t, r2, {16 * (SAMPLES + 1)}; add.u64 o, o, t;
{fill(160)}  fence.proxy.async.shared::cta; bar.sync 0;
  mov.u64 begun, %globaltimer;
  setp.ge.u32 p, r0, 128; @p bra.uni SAMPLE;
  add.u64 next, begun, {REST};
STAY: mov.u64 now, %globaltimer; setp.lt.u64 p, now, next; @p bra.uni STAY;
  shr.u32 r5, r1, 4; cvt.u64.u32 a0, r5; or.b64 a0, a0, {1 << 62 | 64 << 32 | 1 << 16}; add.u64 b0, a0, {B >> 4};
{steps}{clear}
  setp.ne.u32 q, r0, 10000; ld.param.u32 r6, [groups];
  mov.u64 c0, %clock64;
AGAIN:
  wgmma.fence.sync.aligned;
{wgmmas}  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 1;
{rest}  sub.u32 r6, r6, 1; setp.ne.u32 p, r6, 0; @p bra.uni AGAIN;
  wgmma.wait_group.sync.aligned 0;
  mov.u64 c1, %clock64; sub.u64 c1, c1, c0; mov.u64 now, %globaltimer;
  setp.eq.u32 p, r0, 0; @p st.global.v2.u64 [o], {{c1, now}};
  setp.eq.{"f32 p, d0, 0f3f800001" if d == "f32" else "u32 p, d0, 77"}; @p st.global.b32 [o+8], d{registers - 1};
  bra.uni DONE;
SAMPLE:
  setp.ne.u32 p, r0, 128; @p bra DONE;
{samples(SAMPLES, self.every - 20)}DONE: ret;
}}
"""

    @property
    def every(self) -> int:
        """Nanoseconds between samples: EVERY, or more where SAMPLES would not reach the end."""
        return max(EVERY, (self.us * 1000 + 2 * REST) // (SAMPLES - 8))


def loads() -> list[Load]:
    """All loads that are measured."""
    found = [Load(kind, n, data) for kind in TYPES for n in (64, 128, 256) for data in ("zeros", "noise")]
    found += [Load(kind, 128, sms=sms) for kind in TYPES for sms in (1, 16, 33, 66, 99)]
    found += [Load(kind, 256, sms=1) for kind in TYPES]
    found += [Load("f16", 256, rest=rest) for rest in (1536, 2048, 4096)]
    return found + [Load(kind, 256, us=us) for kind in TYPES for us in (6, 1000)]


def contents(kind: str, data: str):
    """Operand bytes, uint8 [OPERANDS]: zeros, or noise of magnitudes from 2 ** -3 to 2 (s8: any)."""
    out = noise(OPERANDS, 7)
    if data == "zeros":
        return np.zeros_like(out)
    if kind == "f16":
        return ((out.view(np.uint16) & 0x8FFF) | 0x3000).view(np.uint8)
    return (out & 0x9F) | 0x20 if kind == "e4m3" else out


def summary(load: Load, seen) -> dict:
    """Reduce a load's samples to what the recording keeps: cycles of a wgmma, GHz before, meanwhile and after.

    seen: int64 [round, SM, sample, 2], first (cycles, ns of the end) of the tensor core, then samples (clock, ns).
    """
    cycles, ended = seen[:, :, 0, 0], seen[:, :, 0, 1]
    steps = np.diff(seen[:, :, 1:], axis=2)
    ghz = steps[..., 0] / np.maximum(steps[..., 1], 1)
    begins = seen[:, :, 1:2, 1] + REST  # the first sample is taken at once
    low, high = seen[:, :, 1:-1, 1], seen[:, :, 2:, 1]
    slices = [low > ended[..., None] + 2 * load.every, high <= begins - 500]
    for i in range(SAMPLES):
        start = begins + i * load.every
        slices.append((low >= start) & (low < start + load.every) & (high <= ended[..., None]))
    after, before, *meanwhile = [round(float(ghz[w].mean()), 4) if w.any() else None for w in slices]
    return {
        "cycles": round(float(np.median(cycles)) / load.groups / 8, 2),
        "before": before,
        "meanwhile": [x for x in meanwhile if x is not None],
        "after": after,
    }


def measure_all(file: Path) -> None:
    """Measures all loads and writes the file."""
    gpu, found = Gpu(), {}
    flush, smi = Timer(gpu).flush, [nvidia_smi()]
    size = 16 * (SAMPLES + 1)
    out, src = gpu.allocate(SMS * size), gpu.allocate(OPERANDS)
    for load in loads():
        gpu.write(src, contents(load.kind, load.data))
        kernel, seen = gpu.kernel(load.ptx, shared=SHARED), []
        launch = gpu.launch(kernel, load.sms, 160, [out, src, load.groups], shared=SHARED)
        for _ in range(ROUNDS):
            gpu.fill(out, 0, SMS * size)
            flush()
            launch()
            seen.append(gpu.read(out, load.sms * size).view(np.int64).reshape(load.sms, SAMPLES + 1, 2))
        found[load.name] = summary(load, np.array(seen[1:]))
    smi.append(nvidia_smi())
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    head = json.dumps({"machine": gpu.describe() | {"nvidia-smi": smi}}, indent=1)[:-2]
    file.write_text(f'{head},\n "points": {{\n{lines}\n }}\n}}\n')


def on_the_model(load: Load, profile) -> dict:
    """A load's summary on the timing model, whose %globaltimer ticks with its fastest clock."""
    import emulated_gpu
    from emulated_gpu.chip import H200
    from emulated_gpu.device import DEVICE

    ghz = profile.clock_ghz
    out, src = allocated(load.sms * 16 * (SAMPLES + 1), OPERANDS)
    src[:] = contents(load.kind, load.data)
    with DEVICE.as_chip(H200), emulated_gpu.timing(profile):
        emulated_gpu.launch(load.ptx, "kernel", load.sms, 160, [out, src, load.groups], shared=SHARED)
    seen = out.view(np.int64).reshape(1, load.sms, SAMPLES + 1, 2)
    found = summary(load, seen)
    return found | {
        "before": found["before"] and found["before"] * ghz,
        "meanwhile": [x * ghz for x in found["meanwhile"]],
        "after": found["after"] and found["after"] * ghz,
    }


def model(only: str, profile) -> None:
    """Prints modelled and measured cycles and GHz of each load whose name contains `only`."""
    known = json.loads(TABLE.read_text())["points"] if TABLE.exists() else {}
    for load in loads():
        if only in load.name:
            of, is_ = known.get(load.name, {}), on_the_model(load, profile)
            print(f"{is_['cycles']:8.2f} {of.get('cycles', float('nan')):8.2f}  {load.name}", flush=True)
            print("    model", *(f"{x:.3f}" for x in is_["meanwhile"][:12]))
            print("    H200 ", *(f"{x:.3f}" for x in of.get("meanwhile", [])[:12]))


if __name__ == "__main__":
    command.main(__doc__, TABLE, measure_all, model)
