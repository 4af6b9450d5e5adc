"""Measures how long mma.sync takes on an H200: until its result can be used, and from one to the next.

    python3 -m silicon.probes.mma_sync run [FILE]      on an H200, with NumPy and libcuda.so.1
    python -m silicon.probes.mma_sync model            the same PTX on the model, beside mma_sync.json

Each warp of a CTA executes COUNT of them ROUNDS times, on one accumulator or on several in turn, with `fmas`
independent fma.rn.f32 behind each, or what is BESIDE before each. The value is cycles per mma of the slowest warp,
clock64 at the end less clock64 at the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from silicon.cuda_driver import SM_90A, Gpu
from silicon.probes import cycles

TABLE = Path(__file__).with_suffix(".json")
ROUNDS, COUNT = 32, 16
LAUNCHES = 10
BITS = {"f64": 64, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "s8": 8, "s4": 4, "b1": 1}
# Shape, type of A and B, type of C and D
FORMS = (
    ("m16n8k8", "f16", "f32"), ("m16n8k16", "f16", "f32"), ("m16n8k8", "f16", "f16"), ("m16n8k16", "f16", "f16"),
    ("m16n8k8", "bf16", "f32"), ("m16n8k16", "bf16", "f32"), ("m16n8k4", "tf32", "f32"), ("m16n8k8", "tf32", "f32"),
    ("m16n8k16", "e4m3", "f32"), ("m16n8k16", "e4m3", "f16"), ("m16n8k32", "e4m3", "f32"), ("m16n8k32", "e4m3", "f16"),
    ("m8n8k16", "s8", "s32"), ("m16n8k16", "s8", "s32"), ("m16n8k32", "s8", "s32"),
    ("m8n8k32", "s4", "s32"), ("m16n8k32", "s4", "s32"), ("m16n8k64", "s4", "s32"),
    ("m8n8k128", "b1", "s32"), ("m16n8k128", "b1", "s32"), ("m16n8k256", "b1", "s32"),
    ("m8n8k4", "f64", "f64"), ("m16n8k4", "f64", "f64"), ("m16n8k8", "f64", "f64"), ("m16n8k16", "f64", "f64"),
)  # fmt: skip
# An access of a warp before each mma, to registers and shared memory of its own: by its number and an offset
BESIDE = {
    "": "",
    "ldmatrix.x4": "  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{x{0}, y{0}, z{0}, v{0}}}, [s+{1}];\n",
    "cp.async": "  cp.async.cg.shared.global [s+{1}], [g], 16;\n",
}


@dataclass(frozen=True)
class Loop:
    """A loop of one form: warps of the CTA, accumulators in turn (`sets`), fma.rn.f32 behind each mma.

    beside: a key of BESIDE.
    fresh: each register of A and B is another value each time, by an add.u32, so that ptxas converts FP8 each time.
    """

    shape: str
    kind: str
    d: str
    warps: int = 1
    sets: int = 1
    fmas: int = 0
    fresh: bool = False
    beside: str = ""

    @property
    def name(self) -> str:
        rest = f" {self.sets} accumulators" * (self.sets > 1) + f" {self.fmas} fma" * (self.fmas > 0)
        rest += " fresh" * self.fresh + f" {self.beside}".rstrip()
        return f"{self.shape} {self.d}.{self.kind} {self.warps} warps" + rest

    @property
    def opcode(self) -> str:
        bitwise = ".xor.popc" if self.kind == "b1" else ""
        return f"mma.sync.aligned.{self.shape}.row.col.{self.d}.{self.kind}.{self.kind}.{self.d}{bitwise}"

    @property
    def ptx(self) -> str:
        wide = self.kind == "f64"
        m, k = 16 if self.shape.startswith("m16") else 8, int(self.shape.partition("k")[2])
        of_b = k * BITS[self.kind] // (64 if wide else 32) // 4
        of_d = m // (8 if self.d == "f16" else 4)
        d_kind = {"f32": "f32", "f64": "f64"}.get(self.d, "b32")
        kind, zero = ("f64", "0d0000000000000000") if wide else ("b32", "0")
        a, b = ([f"{x}{j}" for j in range(count)] for x, count in (("a", of_b * m // 8), ("b", of_b)))
        sets = [[f"d{i}_{j}" for j in range(of_d)] for i in range(self.sets)]
        vector = lambda names: "{" + ", ".join(names) + "}"  # noqa: E731
        body = "  xor.b32 s, s, 512;\n" * bool(self.beside)
        for i in range(COUNT):
            d = vector(sets[i % self.sets])
            body += "".join(f"  add.u32 {x}, {x}, 1;\n" for x in a + b if self.fresh)
            body += BESIDE[self.beside].format(i, 1024 * i) + f"  {self.opcode} {d}, {vector(a)}, {vector(b)}, {d};\n"
            body += "".join(f"  fma.rn.f32 f{j % 8}, f{j % 8}, f8, f8;\n" for j in range(self.fmas))
        every = sum(sets, [])
        cleared = {"f32": "0f00000000", "f64": "0d0000000000000000"}.get(d_kind, "0")
        size = "b64" if d_kind == "f64" else "b32"
        begun = "".join(f"  mov.{size if d_kind[0] == 'f' else 'b32'} {d}, {cleared};\n" for d in every)
        kept = "".join(f"  @p st.global.{size} [o+256], {d};\n" for d in every)
        kept += "".join(f"  @p st.global.b32 [o+256], f{j};\n" for j in range(8))
        read = range(COUNT if self.beside == "ldmatrix.x4" else 0)
        kept += "".join(f"  @p st.global.v4.b32 [o+256], {{x{i}, y{i}, z{i}, v{i}}};\n" for i in read)
        source = "cvt.rn.f64.u32 {}, r0" if wide else "mov.b32 {}, r0"
        filled = "".join(f"  {source.format(x)};\n" for x in a + b)
        return f"""{SM_90A}.visible .entry kernel(.param .u64 out)
{{
  .reg .pred p; .reg .b32 r<8>; .reg .f32 f<9>; .reg .b64 start, stop, o, w, g;
  .shared .align 16 .b8 shared[{1024 * COUNT}]; .reg .b32 s, x<{COUNT}>, y<{COUNT}>, z<{COUNT}>, v<{COUNT}>;
  .reg .{kind} {", ".join(a + b)}; .reg .{d_kind} {", ".join(every)};
  ld.param.u64 o, [out]; mov.u32 r0, %tid.x; shr.u32 r1, r0, 5; mul.wide.u32 w, r1, 8; add.u64 w, w, o;
  and.b32 r2, r0, 31; mov.u32 s, shared; mad.lo.u32 s, r2, 16, s; mul.wide.u32 g, r2, 16; add.u64 g, g, o;
{filled}{begun}{"".join(f"  mov.b32 f{j}, r0;{chr(10)}" for j in range(9))}
  mov.b32 r6, {ROUNDS}; bar.sync 0;
  mov.u64 start, %clock64;
AGAIN:
{body}  sub.u32 r6, r6, 1; setp.ne.u32 p, r6, 0; @p bra.uni AGAIN;
  mov.u64 stop, %clock64; sub.u64 stop, stop, start;
  and.b32 r2, r0, 31; setp.eq.u32 p, r2, 0; @p st.global.u64 [w], stop;
  setp.eq.u32 p, r0, 10000;
{kept}  ret;
}}
"""


def loops() -> dict[str, Loop]:
    """All loops that are measured, by name."""
    found = [Loop(*form, *way) for form in FORMS for way in ((1, 1), (1, 8), (4, 1), (4, 8), (8, 8), (16, 4))]
    most = FORMS[1]
    found += [Loop(*most, *way) for way in ((1, 2), (1, 4), (8, 1), (8, 2), (16, 1), (12, 2))]
    fresh = most, *(form for form in FORMS if form[1] in ("e4m3", "s4"))
    found += [Loop(*form, *way, fresh=True) for form in fresh for way in ((1, 1), (1, 8), (8, 8), (16, 4))]
    found += [Loop(*most, warps, 8, fmas) for warps in (1, 4, 8, 16) for fmas in (1, 2, 4, 8)]
    found += [Loop(*most, warps, 8, beside=x) for x in BESIDE if x for warps in (1, 4, 8, 16)]
    return {loop.name: loop for loop in found}


def measure_all(file: Path) -> None:
    """Measures all loops and writes the file."""
    gpu, found = Gpu(), {}
    out = gpu.allocate(4096)
    for name, loop in loops().items():
        launch = gpu.launch(gpu.kernel(loop.ptx), 1, 32 * loop.warps, [out])
        slowest, _ = cycles.measured(gpu, out, loop.warps, LAUNCHES, lambda _, launch=launch: launch())
        found[name] = [round(slowest / ROUNDS / COUNT, 3)]
    found["GHz: one SM works, all do"] = clocks(gpu)
    cycles.write_recording(file, gpu, found)


def clocks(gpu: Gpu) -> list[float]:
    """The clock of an SM, GHz, that executes a loop for some milliseconds, alone and while all do."""
    out, found = gpu.allocate(1 << 16), []
    text = Loop(*FORMS[1], warps=16, sets=4).ptx.replace(f"mov.b32 r6, {ROUNDS};", "mov.b32 r6, 40000;")
    text = text.replace("mov.u64 start, %clock64;", "mov.u64 start, %clock64; mov.u64 t, %globaltimer;")
    text = text.replace(".reg .b64 start,", ".reg .b64 t, u, start,")
    read = "  mov.u64 u, %globaltimer; sub.u64 u, u, t; st.global.u64 [o+512], u;\n"
    text = text.replace("  and.b32 r2, r0, 31;", f"{read}  and.b32 r2, r0, 31;")
    kernel = gpu.kernel(text)
    for ctas in (1, 132):
        for _ in range(3):
            gpu.launch(kernel, ctas, 512, [out])()
        words = gpu.read(out, 1024).view(np.uint64)
        found.append(round(int(words[:16].max()) / int(words[64]), 3))
    return found


def on_the_model(loop: Loop, profile) -> list[float]:
    """The cycles per mma of a loop by the model."""
    import emulated_gpu
    from emulated_gpu.chip import H200

    out = np.zeros(64, np.uint64)
    with emulated_gpu.DEVICE.as_chip(H200), emulated_gpu.timing(profile):
        emulated_gpu.launch(loop.ptx, "kernel", 1, 32 * loop.warps, [out])
    return [int(out[: loop.warps].max()) / ROUNDS / COUNT]


if __name__ == "__main__":
    cycles.main(__doc__, TABLE, measure_all, loops(), on_the_model)
