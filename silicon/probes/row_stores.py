"""Measures how fast warps store where the lanes of an instruction lie in several rows.

    python3 -m silicon.probes.row_stores run [FILE]     on a Hopper GPU, with NumPy and libcuda.so.1
    python -m silicon.probes.row_stores model           the same stores on the model, beside row_stores.json

Each of four warps a CTA issues 64 st.global of 4 or 16 bytes a lane, its lanes in `rows` rows 8 KiB apart, neighbours
of a row side by side; the next instruction goes on in the same rows. Recorded, of an H100, are the cycles of
the slowest CTA until the last has been issued.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import SM_90, Gpu

from . import cycles

TABLE = Path(__file__).with_suffix(".json")
WARPS, STEPS, PITCH, SMS = 4, 64, 8192, 132
ROWS = 1, 2, 4, 8, 16, 32
POINTS = {
    f"{width} B, {rows} rows, {ctas} CTAs": (width, rows, ctas)
    for width in (4, 16)
    for rows in ROWS
    for ctas in (1, SMS)
}
ROOM = SMS * WARPS * 32 * PITCH


def kernel(width: int, rows: int) -> str:
    """PTX of the stores; arguments out (u64 [CTA]: cycles), dst."""
    lanes = 32 // rows
    form, value = ("u32", "r4") if width == 4 else ("v4.u32", "{r4, r4, r4, r4}")
    body = "\n".join(f"  st.global.{form} [a+{i * lanes * width}], {value};" for i in range(STEPS))
    return f"""{SM_90}.visible .entry kernel(.param .u64 out, .param .u64 dst)
{{
  .reg .pred p; .reg .b32 r<8>; .reg .b64 a, o, d, start, stop;
  mov.u32 r0, %tid.x; mov.u32 r1, %ctaid.x; ld.param.u64 o, [out]; ld.param.u64 a, [dst];
  mul.wide.u32 d, r1, 8; add.u64 o, o, d;
  and.b32 r2, r0, 31; shr.u32 r3, r0, 5; mad.lo.u32 r3, r1, {WARPS}, r3; mul.lo.u32 r3, r3, {rows};
  div.u32 r5, r2, {lanes}; add.u32 r3, r3, r5; mul.wide.u32 d, r3, {PITCH}; add.u64 a, a, d;
  rem.u32 r5, r2, {lanes}; mul.wide.u32 d, r5, {width}; add.u64 a, a, d; mov.b32 r4, 7;
  bar.sync 0; mov.u64 start, %clock64;
{body}
  bar.sync 0; mov.u64 stop, %clock64; sub.u64 stop, stop, start;
  setp.ne.u32 p, r0, 0; @p bra DONE; st.global.u64 [o], stop;
DONE: ret;
}}
"""


def measure_all(file: Path) -> None:
    """Measures all points and writes the file."""
    gpu, found = Gpu(), {}
    out, room = gpu.allocate(1 << 12), gpu.allocate(ROOM)
    for name, (width, rows, ctas) in POINTS.items():
        launch, seen = gpu.launch(gpu.kernel(kernel(width, rows)), ctas, 32 * WARPS, [out, room]), []
        for _ in range(8):
            launch()
            seen.append(gpu.read(out, 8 * ctas).view(np.uint64).max())
        found[name] = float(np.median(seen[1:]))
    cycles.write_recording(file, gpu, found)


def on_the_model(point: tuple[int, int, int], profile) -> float:
    """A point's cycles on the timing model, as the recording has them: those of a second launch."""
    import emulated_gpu

    width, rows, ctas = point
    room, *outs = cycles.allocated(ROOM, 1 << 12, 1 << 12)
    with emulated_gpu.timing(profile):
        for out in outs:
            emulated_gpu.launch(kernel(width, rows), "kernel", ctas, 32 * WARPS, [out, room])
    return float(outs[-1].view(np.uint64)[:ctas].max())


def model(only: str, profile) -> None:
    """Prints modelled and measured cycles of each point whose name contains `only`."""
    known = cycles.recorded(TABLE)
    for name, point in POINTS.items():
        if only in name:
            cycles.show(name, [on_the_model(point, profile)], [known.get(name, cycles.UNKNOWN)])


if __name__ == "__main__":
    command.main(__doc__, TABLE, measure_all, model)
