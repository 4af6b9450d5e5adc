"""Measures how launches of a PDL chain follow each other on an SM: from a CTA's end to the next one's start and wait.

    python3 -m silicon.probes.pdl_chain card      on an H200, with NumPy and libcuda.so.1
    python -m silicon.probes.pdl_chain model      on the timing model, profile h200

Each of 8 launches has a CTA on every SM, whose shared memory leaves no room for a second one. A CTA releases the next
launch at once, executes griddepcontrol.wait, spins, stores some rows of 16 bytes a thread, and its clocks. Both print
their medians beside MEASURED, the recording.
"""

import numpy as np

from silicon import command
from silicon.cuda_driver import SM_90A, Gpu, Timer

MEASURED = {  # (CTAs per cluster, rows): cycles from end to start and from start to the return of the wait, medians
    (1, 0): (776, 274), (1, 4): (745, 936), (1, 16): (487, 1708),
    (2, 0): (594, 444), (2, 4): (649, 1078), (2, 16): (545, 1664),
}  # fmt: skip
# NVIDIA H200, driver 580.159.04, 1980 MHz, 2026-11-21
LAUNCHES, SMS, THREADS, SHARED = 8, 132, 352, 200 << 10
BYTES = SMS * THREADS * 16 * max(rows for _, rows in MEASURED)  # stored by a launch

PTX = SM_90A + """.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 out, .param .u64 c, .param .u32 rows)
{
  .reg .pred p; .reg .b32 r<8>; .reg .b64 start, passed, stop, spent, sm, at, row;
  mov.u64 start, %clock64;
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;
  mov.u64 passed, %clock64;
SPIN: mov.u64 stop, %clock64; sub.u64 spent, stop, passed; setp.lt.u64 p, spent, 6000; @p bra SPIN;
  mov.u32 r1, %tid.x; mov.u32 r2, %ctaid.x; mov.u32 r4, %ntid.x; ld.param.u32 r5, [rows];
  mul.lo.u32 r6, r4, r5; mad.lo.u32 r6, r6, r2, r1; ld.param.u64 at, [c]; mad.wide.u32 at, r6, 16, at;
  mul.wide.u32 row, r4, 16; mov.u32 r6, 0;
ROW: setp.ge.u32 p, r6, r5; @p bra END;
  st.global.v4.u32 [at], {r1, r1, r1, r1}; add.u64 at, at, row; add.u32 r6, r6, 1; bra ROW;
END: setp.ne.u32 p, r1, 0; @p bra DONE;
  mov.u32 r3, %smid; cvt.u64.u32 sm, r3;
  ld.param.u64 at, [out]; mad.wide.u32 at, r2, 32, at;
  st.global.v2.u64 [at], {start, passed};
  mov.u64 stop, %clock64;
  st.global.v2.u64 [at+16], {stop, sm};
DONE: ret;
}
"""


def readings(clocks) -> tuple[int, int]:
    """Median cycles from end to start and from start to the wait's return, from the third launch on.

    clocks: [LAUNCHES, SMS, (start, passed, stop, SM)].
    """
    to_start, to_pass = [], []
    for before, now in zip(clocks[1:-1], clocks[2:]):
        stop = {sm: stop for _, _, stop, sm in before.tolist()}
        to_start += [start - stop[sm] for start, _, _, sm in now.tolist()]
        to_pass += [passed - start for start, passed, _, _ in now.tolist()]
    return int(np.median(to_start)), int(np.median(to_pass))


def on_the_card(cluster: int, rows: int):
    """Clocks of a chain on this machine's GPU, as `readings` takes them."""
    gpu, nbytes = Gpu(), LAUNCHES * SMS * 32
    timer, kernel = Timer(gpu), gpu.kernel(PTX, shared=SHARED)
    results, stored = gpu.allocate(nbytes), gpu.allocate(LAUNCHES * BYTES)
    each = [(results + i * SMS * 32, stored + i * BYTES, rows) for i in range(LAUNCHES)]
    launches = [gpu.launch(kernel, SMS, THREADS, args, cluster, SHARED, pdl=True) for args in each]
    for _ in range(2):  # the first time meets cold caches
        timer.once(launches, before=())
    return gpu.read(results, nbytes).view(np.uint64).reshape(LAUNCHES, SMS, 4).astype(np.int64)


def on_the_model(cluster: int, rows: int, launches: int = LAUNCHES):
    """Clocks of a chain on the timing model; it spins for less than the card, as the emulator is slow."""
    import emulated_gpu
    from emulated_gpu.chip import H200
    from emulated_gpu.device import DEVICE, allocate
    from emulated_gpu.model.profile import load

    outputs = [allocate(SMS * 32) for _ in range(launches)]
    stored = [allocate(BYTES) for _ in range(launches)]
    for out, c in zip(outputs, stored):
        out[:] = 0
        DEVICE.adopt(out, "clocks")
        DEVICE.adopt(c, "c")
    ptx = PTX.replace("spent, 6000", "spent, 1500")
    with DEVICE.as_chip(H200), emulated_gpu.timing(load("h200")):
        for out, c in 2 * list(zip(outputs, stored)):  # as on the card, where the second time meets lines in L2
            emulated_gpu.launch(ptx, "kernel", SMS, THREADS, [out, c, rows], cluster=cluster, shared=SHARED, pdl=True)
    return np.array([out.view(np.uint64).reshape(SMS, 4) for out in outputs]).astype(np.int64)


@command.on_gpu()
def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("what", choices=("card", "model"))
    clocks_of = {"card": on_the_card, "model": on_the_model}[parser.parse_args().what]
    for (cluster, rows), (to_start, to_pass) in MEASURED.items():
        found = readings(clocks_of(cluster, rows))
        print(f"clusters of {cluster}, {rows * THREADS * 16} bytes a CTA: end to start {found[0]}", end=" ")
        print(f"(recorded {to_start}), start to wait {found[1]} ({to_pass})")


if __name__ == "__main__":
    main()
