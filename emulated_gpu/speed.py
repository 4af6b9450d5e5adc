"""`python -m emulated_gpu.speed`: how fast the emulator executes, in seconds of one core of the machine that it runs
on.

Kernels whose work is in the instructions of threads, a line each. Times are CPU time of this process (what others do on
the machine does not count), of a second launch: blocks of a program become machine code when they are hot.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

import emulated_gpu

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
REGISTERS = """
.reg .pred %p<8>; .reg .b32 %r<40>; .reg .f32 %f<40>; .reg .b64 %d<8>;
ld.param.b64 %d0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x;
mad.lo.u32 %r3, %r1, %r2, %r0; mul.wide.u32 %d1, %r3, 4; add.u64 %d1, %d0, %d1;
"""


def entry(body: str, shared: str = "") -> str:
    """PTX of a kernel `k` with one pointer; its body has the thread's word of the pointer in %d1, %tid.x in %r0."""
    return f"{HEADER}.visible .entry k(.param .b64 out) {{ {shared} {REGISTERS} {body} ret; }}\n"


def loop(turns: int, body: str, prologue: str = "", epilogue: str = "") -> str:
    """PTX that executes `body` in a loop, whose counter is %r39."""
    count = "add.u32 %r39, %r39, 1; setp.lt.u32 %p7, %r39, {turns}; @%p7 bra LOOP;".replace("{turns}", str(turns))
    return f"{prologue} mov.u32 %r39, 0; LOOP: {body} {count} {epilogue}"


CHAINS = range(8)
FMA = loop(
    2000,
    "".join(f"fma.rn.f32 %f{k}, %f{k}, %f30, %f31;" for k in CHAINS),
    "cvt.rn.f32.u32 %f30, %r0; mov.f32 %f31, 0f3F800000; mul.rn.f32 %f30, %f30, 0f3A800000;"
    + "".join(f"mov.f32 %f{k}, %f30;" for k in CHAINS),
    "".join(f"add.rn.f32 %f0, %f0, %f{k};" for k in CHAINS[1:]) + "st.global.f32 [%d1], %f0;",
)
INTEGER = loop(
    2000,
    "".join(f"add.u32 %r{10 + k}, %r{10 + k}, %r0; xor.b32 %r{10 + k}, %r{10 + k}, %r39;" for k in CHAINS),
    "".join(f"mov.u32 %r{10 + k}, %r0;" for k in CHAINS),
    "".join(f"add.u32 %r10, %r10, %r{10 + k};" for k in CHAINS[1:]) + "st.global.b32 [%d1], %r10;",
)
SHARED = loop(
    1000,
    "st.shared.b32 [%r5], %r39; ld.shared.b32 %r6, [%r5]; add.u32 %r7, %r7, %r6;"
    "st.shared.b32 [%r5+4096], %r7; ld.shared.b32 %r6, [%r5+4096]; add.u32 %r7, %r7, %r6;",
    "mov.u32 %r4, buffer; shl.b32 %r5, %r0, 2; add.u32 %r5, %r5, %r4; mov.u32 %r7, 0;",
    "st.global.b32 [%d1], %r7;",
)
GLOBAL = loop(
    1000,
    "ld.global.b32 %r6, [%d1]; add.u32 %r7, %r7, %r6; st.global.b32 [%d1], %r7;"
    "ld.global.b32 %r6, [%d1+4096]; add.u32 %r7, %r7, %r6; st.global.b32 [%d1+4096], %r7;",
    "mov.u32 %r7, 0;",
)
SMALL = "cvt.rn.f32.u32 %f0, %r3; fma.rn.f32 %f1, %f0, %f0, %f0; st.global.f32 [%d1], %f1;"
ROW = 781  # of Triton's tutorial 02
SOFTMAX = f"""
mul.lo.u32 %r3, %r1, {ROW}; mul.wide.u32 %d2, %r3, 4; add.u64 %d2, %d0, %d2; mul.wide.u32 %d3, %r0, 4;
add.u64 %d2, %d2, %d3; add.u64 %d3, %d2, {1823 * ROW * 4}; mov.u32 %r4, buffer; shr.u32 %r5, %r0, 5;
shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r4; and.b32 %r6, %r0, 31; setp.eq.u32 %p0, %r6, 0;
""" + "".join(
    f"add.u32 %r7, %r0, {128 * k}; setp.lt.u32 %p1, %r7, {ROW}; mov.f32 %f{k}, 0fFF800000;"
    f"@%p1 ld.global.f32 %f{k}, [%d2+{512 * k}];" for k in range(7)
) + "{reductions}" + "".join(
    f"add.u32 %r7, %r0, {128 * k}; setp.lt.u32 %p1, %r7, {ROW}; div.full.f32 %f{k}, %f{k}, %f21;"
    f"@%p1 st.global.f32 [%d3+{512 * k}], %f{k};" for k in range(7)
)  # fmt: skip


def _reduction(op: str, to: int) -> str:
    """PTX that reduces %f0 to %f6 over a CTA of four warps into %f<to>."""
    across = "".join(
        f"mov.b32 %r10, %f{to}; shfl.sync.bfly.b32 %r11, %r10, {lanes}, 31, -1; mov.b32 %f22, %r11;"
        f"{op} %f{to}, %f{to}, %f22;" for lanes in (16, 8, 4, 2, 1)
    )  # fmt: skip
    warps = "".join(f"ld.shared.f32 %f22, [buffer+{4 * k}]; {op} %f{to}, %f{to}, %f22;" for k in range(1, 4))
    return (
        f"{op} %f{to}, %f0, %f1;" + "".join(f"{op} %f{to}, %f{to}, %f{k};" for k in range(2, 7)) + across
        + f"bar.sync 0; @%p0 st.shared.f32 [%r5], %f{to}; bar.sync 0; ld.shared.f32 %f{to}, [buffer]; {warps}"
    )  # fmt: skip


EXPONENTIALS = "".join(
    f"sub.rn.f32 %f{k}, %f{k}, %f20; mul.rn.f32 %f{k}, %f{k}, 0f3FB8AA3B; ex2.approx.f32 %f{k}, %f{k};"
    for k in range(7)
)
SOFTMAX = SOFTMAX.replace("{reductions}", _reduction("max.f32", 20) + EXPONENTIALS + _reduction("add.rn.f32", 21))
SMEM = ".shared .align 16 .b8 buffer[8192];"


@dataclass(frozen=True)
class Case:
    """A kernel to launch. work: thread instructions (or accesses) of a launch, 0 where its seconds are the figure."""

    what: str
    unit: str
    ptx: str
    grid: int
    block: int
    words: int
    work: int
    bar: str
    check: Callable[[np.ndarray], bool] = lambda out: True


def _is_softmax(out: np.ndarray) -> bool:
    x, y = out.view(np.float32).reshape(2, 1823, ROW).astype(np.float64)
    e = np.exp(x - x.max(1, keepdims=True))
    return bool(np.allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-9))


CASES = {
    "fma": Case("fma", "M thread instructions a second", entry(FMA), 1, 128, 128, 128 * 2000 * 11, ">= 100"),
    "integer": Case("integers", "M thread instructions a second", entry(INTEGER), 1, 128, 128, 128 * 38000, ">= 150"),
    "shared": Case("ld, st.shared", "M thread accesses a second", entry(SHARED, SMEM), 1, 128, 128, 512000, ">= 40"),
    "global": Case("ld, st.global", "M thread accesses a second", entry(GLOBAL), 1, 128, 1152, 128 * 4000, ">= 40"),
    "ctas": Case("2048 CTAs of a warp", "s", entry(SMALL), 2048, 32, 65536, 0, "<= 0.1"),
    "softmax": Case("softmax, 1823 x 781", "s", entry(SOFTMAX, SMEM), 1823, 128, 3646 * ROW, 0, "<= 20", _is_softmax),
}  # fmt: skip


def measure(case: Case) -> dict:
    """Launch a case twice; returns the CPU seconds of both, and `value`: what the second one gives in its unit."""
    seconds = []
    for _ in range(2):
        out = np.random.default_rng(0).standard_normal(case.words).astype(np.float32).view(np.uint32)
        begin = time.process_time()
        emulated_gpu.launch(case.ptx, "k", case.grid, case.block, [out])
        seconds.append(time.process_time() - begin)
    if not case.check(out):
        raise SystemExit(f"{case.what}: wrong results")
    value = case.work / seconds[1] / 1e6 if case.work else seconds[1]
    found = {"what": case.what, "unit": case.unit, "value": round(value, 3), "bar": case.bar}
    return found | {"first_s": round(seconds[0], 3)}


@click.command(help=__doc__)
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures there, too.")
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
def main(file: Path | None, names: tuple[str, ...]):
    results = {}
    for name in names or CASES:
        results[name] = found = measure(CASES[name])
        what = CASES[name].what
        print(
            f"{what:20} {found['value']:10.3f} {found['unit']:32} bar {found['bar']:8} first {found['first_s']:.2f} s"
        )
        sys.stdout.flush()
    if file:
        record = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
        file.write_text(json.dumps(record | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
