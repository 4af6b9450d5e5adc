"""Measures how long wgmma.mma_async takes on an H200: cycles between instructions of a type and shape, and to a wait.

    python3 -m silicon.probes.wgmma run [FILE]      on an H200, with NumPy and libcuda.so.1
    python -m silicon.probes.wgmma model            the same PTX on the model, beside wgmma.json

A CTA has one or two warpgroups. Each repeats ROUNDS times: wgmma.fence, `count` wgmmas on one accumulator or on `sets`
of them in turn, commit_group, wait_group. The value is cycles per round, clock64 at the end less clock64 at the
beginning; count 0 has no wgmma and says what fence, commit, wait and the loop cost. Or it is the cycles from the fence
to when the last wgmma of a round has been issued.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import SM_90A, Gpu, nvidia_smi

TABLE = Path(__file__).with_suffix(".json")
ROUNDS = 64
SHARED = 65536
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "s8": 8}


@dataclass(frozen=True)
class Rate:
    """A loop of wgmmas: N, the type of A and B, and where A is, "s" in shared memory or "r" in registers.

    count, sets, warpgroups: as above; d: the accumulator's type; pending: groups that wait_group leaves under way;
    issued: until the last is issued, not complete.
    """

    n: int
    kind: str = "f16"
    a: str = "s"
    count: int = 8
    sets: int = 1
    warpgroups: int = 1
    d: str = "f32"
    pending: int = 0
    issued: bool = False

    @property
    def name(self) -> str:
        return (
            f"n{self.n} {self.d}.{self.kind} {self.a} x{self.count}"
            + f" {self.sets} accumulators" * (self.sets > 1)
            + (f" {self.warpgroups} warpgroups" * (self.warpgroups > 1) + f" wait {self.pending}" * (self.pending > 0))
            + " issued" * self.issued
        )

    @property
    def ptx(self) -> str:
        registers = self.n // (4 if self.d == "f16" else 2)
        kind = {"f32": "f32", "f16": "b32", "s32": "s32"}[self.d]
        rest = {16: ", 1, 1, 0" + ", 0" * (self.a == "s"), 32: ", 1, 1", 8: ", 1, 1" * (self.kind != "s8")}[
            BITS[self.kind]
        ]
        a = "a" if self.a == "s" else "{z, z, z, z}"
        wgmmas = ""
        for i in range(self.count):
            d = ", ".join(f"d{i % self.sets}_{j}" for j in range(registers))
            shape = f"m64n{self.n}k{256 // BITS[self.kind]}.{self.d}.{self.kind}.{self.kind}"
            wgmmas += f"  wgmma.mma_async.sync.aligned.{shape} {{{d}}}, {a}, b, q{rest};\n"
        zero = {"f32": "0f00000000"}.get(kind, "0")
        sets = range(self.sets)
        declared = " ".join(f".reg .{kind} d{i}_<{registers}>;" for i in sets)
        cleared = "\n".join(f"  mov.b32 d{i}_{j}, {zero};" for i in sets for j in range(registers))
        compared, one = (kind, "0f3f800000") if kind == "f32" else ("u32", 77)
        kept = "".join(f"  setp.eq.{compared} p, d{i}_0, {one}; "
                       f"@p st.global.b32 [o+64], d{i}_{registers - 1};\n" for i in sets)  # fmt: skip
        begin, end = "  mov.u64 start, %clock64;\n", "  mov.u64 stop, %clock64; sub.u64 stop, stop, start;\n"
        clocks = begin, "", "", end
        if self.issued:
            clocks = "  mov.b64 sum, 0;\n", begin, f"{end}  add.u64 sum, sum, stop;\n", "  mov.b64 stop, sum;\n"
        return f"""{SM_90A}.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 out)
{{
  .reg .pred p, q; .reg .b32 r<8>, z; .reg .b64 a, b, start, stop, {"sum, " * self.issued}o; {declared}
  ld.param.u64 o, [out]; mov.u32 r0, %tid.x; mov.u32 r4, smem; mov.b32 z, 0;
  mad.lo.u32 r1, r0, 16, r4; add.u32 r2, r4, {SHARED};
ZERO: st.shared.v4.b32 [r1], {{z, z, z, z}}; add.u32 r1, r1, {self.warpgroups * 128 * 16};
  setp.lt.u32 p, r1, r2; @p bra ZERO;
  fence.proxy.async.shared::cta; bar.sync 0;
  shr.u32 r5, r4, 4; cvt.u64.u32 a, r5; or.b64 a, a, {1 << 62 | 64 << 32 | 1 << 16}; add.u64 b, a, {16384 >> 4};
{cleared}
  setp.eq.u32 q, r0, 10000; mov.b32 r6, {ROUNDS}; bar.sync 0;
{clocks[0]}AGAIN:
  wgmma.fence.sync.aligned;
{clocks[1]}{wgmmas}{clocks[2]}  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned {self.pending};
  sub.u32 r6, r6, 1; setp.ne.u32 p, r6, 0; @p bra.uni AGAIN;
  wgmma.wait_group.sync.aligned 0;
{clocks[3]}  setp.eq.u32 p, r0, 0; @p st.global.u64 [o], stop;
{kept}  ret;
}}
"""

    @property
    def digest(self) -> str:
        """Changes with the PTX: cycles measured of another text must not be compared."""
        return hashlib.sha256(self.ptx.encode()).hexdigest()[:16]


def rates() -> list[Rate]:
    """All loops that are measured."""
    found = [Rate(n, count=count) for n in (8, 16, 32, 64, 96, 128, 192, 256) for count in (0, 1, 2, 4, 8)]
    found += [Rate(n, a="r", count=count) for n in (8, 64, 128, 256) for count in (1, 8)]
    found += [Rate(n, kind, count=count, d="s32" if kind == "s8" else "f32")
              for kind in ("bf16", "tf32", "e4m3", "s8") for n in (64, 128, 256) for count in (1, 8)]  # fmt: skip
    found += [Rate(n, "e4m3", a="r", count=8) for n in (64, 256)]
    found += [Rate(n, d="f16", count=count) for n in (64, 128) for count in (1, 8)]
    found += [Rate(n, count=count, sets=2) for n in (64, 128) for count in (2, 8)]
    found += [Rate(n, count=count, warpgroups=2) for n in (64, 128, 256) for count in (1, 4, 8)]
    found += [Rate(n, count=count, pending=1) for n in (64, 128, 256) for count in (1, 4)]
    found += [Rate(n, count=count, issued=True) for n in (64, 128, 256) for count in (1, 2, 3, 4, 5, 6, 8, 12, 16)]
    return found


def measure_all(file: Path) -> None:
    """Measures all loops and writes the file."""
    gpu = Gpu()
    out, found = gpu.allocate(4096), {}
    for rate in rates():
        try:
            kernel, values = gpu.kernel(rate.ptx, shared=SHARED), []
            for _ in range(10):
                gpu.launch(kernel, 1, 128 * rate.warpgroups, [out], shared=SHARED)()
                values.append(int(gpu.read(out, 8).view(np.uint64)[0]))
            found[rate.name] = {"digest": rate.digest, "cycles": round(float(np.median(values[1:])) / ROUNDS, 2)}
        except RuntimeError as error:
            print("FAILED", rate.name, error)
            break
    file.write_text(json.dumps({"machine": gpu.describe(), "nvidia-smi": nvidia_smi(), "points": found}, indent=1))


def model(only: str, profile) -> None:
    """Prints modelled and measured cycles of each loop whose name contains `only`."""
    import emulated_gpu
    from emulated_gpu.chip import H200

    for rate in rates():
        if only not in rate.name:
            continue
        out = np.zeros(64, np.uint64)
        with emulated_gpu.DEVICE.as_chip(H200), emulated_gpu.timing(profile):
            emulated_gpu.launch(rate.ptx, "kernel", 1, 128 * rate.warpgroups, [out], shared=SHARED)
        cycles = int(out[0]) / ROUNDS
        known = json.loads(TABLE.read_text())["points"].get(rate.name) if TABLE.exists() else None
        measured = known["cycles"] if known and known["digest"] == rate.digest else float("nan")
        print(f"{cycles:8.1f} {measured:8.1f} {cycles / measured - 1:+7.1%}  {rate.name}", flush=True)


if __name__ == "__main__":
    command.main(__doc__, TABLE, measure_all, model)
