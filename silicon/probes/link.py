"""Measures what a kernel pays for memory of another GPU: loads, fences, messages, and the rate of the link.

    python3 -m silicon.probes.link run [FILE]      on two GPUs of one host, with NumPy and libcuda.so.1
    python -m silicon.probes.link model            the model's figures, beside link.json

Each load of a chain has the address of the next; a fence follows a store; a message is this many words of a warp and a
flag with release at the scope of the system, which the other GPU's warp awaits before it answers in kind. Rates are
those of all SMs, or of some, that store to the other GPU's memory or load from it, each byte once. The second launch
counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import Gpu, Timer, nvidia_smi

TABLE = Path(__file__).with_suffix(".json")
HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"
TURNS = 64  # loads of a chain, fences, messages there and back
STRIDE = 256  # bytes from one load of a chain to the next
ROWS = (0, 1, 16)  # of 512 bytes in a message
THREADS, MIB = 512, 1 << 20
RATES = [(load, ctas, 64 if ctas > 8 else 8) for load in (False, True) for ctas in (1, 8, 33, 132)]
CHAIN = HEAD + """.visible .entry kernel(.param .u64 at, .param .u64 out)
{
  .reg .pred p; .reg .b64 a, o, begun, ended;
  ld.param.u64 a, [at]; ld.param.u64 o, [out]; mov.u64 begun, %clock64;
LOOP: ld.relaxed.sys.global.u64 a, [a]; setp.ne.u64 p, a, 0; @p bra LOOP;
  mov.u64 ended, %clock64; sub.u64 ended, ended, begun; st.global.u64 [o], ended; ret;
}
"""
FENCE = HEAD + """.visible .entry kernel(.param .u64 at, .param .u64 out)
{
  .reg .pred p; .reg .b32 turn; .reg .b64 a, o, begun, ended;
  ld.param.u64 a, [at]; ld.param.u64 o, [out]; mov.u32 turn, 0; mov.u64 begun, %clock64;
LOOP: st.relaxed.sys.global.u32 [a], turn; fence.acq_rel.sys; add.u32 turn, turn, 1;
  setp.lt.u32 p, turn, TURNS; @p bra LOOP;
  mov.u64 ended, %clock64; sub.u64 ended, ended, begun; st.global.u64 [o], ended; ret;
}
""".replace("TURNS", str(TURNS))
MESSAGE = HEAD + """.visible .entry kernel(
  .param .u64 mine, .param .u64 theirs, .param .u64 out, .param .u32 answers, .param .u32 rows)
{
  .reg .pred p, second, leads; .reg .b32 turn, lane, seen, row, count, flag; .reg .b64 m, t, o, to, begun, ended, wide;
  ld.param.u64 m, [mine]; ld.param.u64 t, [theirs]; ld.param.u64 o, [out];
  ld.param.u32 flag, [answers]; ld.param.u32 count, [rows]; setp.ne.u32 second, flag, 0;
  mov.u32 lane, %tid.x; setp.eq.u32 leads, lane, 0; mul.wide.u32 wide, lane, 16; mov.u32 turn, 1;
  mov.u64 begun, %clock64;
TURN: @second bra WAIT;
SEND: mov.u32 row, 0; add.u64 to, t, wide; add.u64 to, to, 128;
MORE: setp.ge.u32 p, row, count; @p bra FLAG;
  st.global.v4.u32 [to], {turn, turn, turn, turn}; add.u64 to, to, 512; add.u32 row, row, 1; bra.uni MORE;
FLAG: bar.warp.sync -1; @leads st.release.sys.global.u32 [t], turn; @second bra NEXT;
WAIT: ld.acquire.sys.global.u32 seen, [m]; setp.lt.u32 p, seen, turn; @p bra WAIT;
  bar.warp.sync -1; @second bra SEND;
NEXT: add.u32 turn, turn, 1; setp.le.u32 p, turn, TURNS; @p bra TURN;
  mov.u64 ended, %clock64; sub.u64 ended, ended, begun; @leads st.global.u64 [o], ended; ret;
}
""".replace("TURNS", str(TURNS))


def moves(load: bool) -> str:
    """PTX of a kernel whose threads load, or store, 16 bytes at a time, the grid's side by side, until `nbytes`."""
    registers = [f"{x}{k}" for k in range(4) for x in "abcd"]
    each = [f"{{{', '.join(registers[4 * k : 4 * k + 4])}}}" for k in range(4)]
    step = " add.u64 at, at, step;"
    body = "".join(f"ld.global.v4.u32 {x}, [at];{step}" if load else f"st.global.v4.u32 [at], {x};{step}" for x in each)
    used = "".join(f"xor.b32 i, i, {x};" for x in registers) if load else ""
    return HEAD + f""".visible .entry kernel(.param .u64 base, .param .u64 nbytes, .param .u64 out)
{{
  .reg .pred p; .reg .b32 i, n, t, all, {", ".join(registers)}; .reg .b64 at, end, step, o, wide;
  ld.param.u64 at, [base]; ld.param.u64 end, [nbytes]; ld.param.u64 o, [out]; add.u64 end, at, end;
  mov.u32 i, %ctaid.x; mov.u32 n, %ntid.x; mov.u32 t, %tid.x; mov.u32 all, %nctaid.x;
  mad.lo.u32 i, i, n, t; mul.lo.u32 all, all, n; mul.wide.u32 wide, i, 16; add.u64 at, at, wide;
  mul.wide.u32 step, all, 16; {"".join(f"mov.u32 {x}, i;" for x in registers)}
LOOP: {body} {used} setp.lt.u64 p, at, end; @p bra LOOP;
  setp.eq.u32 p, i, 0xFFFFFFFF; @p st.global.u32 [o], i; ret;
}}
"""


def nbytes(ctas: int, mib: int) -> int:
    """Return how many bytes a grid moves: whole loops of all its threads, at most this many MiB."""
    loop = ctas * THREADS * 64
    return mib * MIB // loop * loop


class Cards:
    """Two GPUs; each may access the other's memory. Cycles and microseconds are the first one's."""

    def __init__(self):
        self.gpus = [Gpu(0), Gpu(1)]
        self.gpus[0].reach(self.gpus[1])
        self.gpus[1].reach(self.gpus[0])
        self.kernels, self.room, self.out = [], [], []
        for gpu in self.gpus:
            gpu.use()
            self.kernels.append({ptx: gpu.kernel(ptx) for ptx in (CHAIN, FENCE, MESSAGE, moves(False), moves(True))})
            self.room.append(gpu.allocate(64 * MIB))
            self.out.append(gpu.allocate(64))
        self.gpus[0].use()
        self.timer = Timer(self.gpus[0])

    def _cycles(self, ptx: str, far: bool) -> int:
        gpu = self.gpus[0]
        gpu.use()
        launch = gpu.launch(self.kernels[0][ptx], 1, 1, [self.room[far], self.out[0]])
        for _ in range(2):
            launch()
        return int(gpu.read(self.out[0], 8).view(np.uint64)[0])

    def chain(self, far: bool) -> int:
        gpu, base = self.gpus[far], self.room[far]
        gpu.use()
        chain = np.zeros(TURNS * STRIDE // 8, np.uint64)
        chain[: -STRIDE // 8 : STRIDE // 8] = base + STRIDE * np.arange(1, TURNS)  # the last one is 0
        gpu.write(base, chain)
        return self._cycles(CHAIN, far)

    def fence(self, far: bool) -> int:
        return self._cycles(FENCE, far)

    def message(self, rows: int) -> int:
        for _ in range(2):
            for gpu, room in zip(self.gpus, self.room):
                gpu.use()
                gpu.fill(room, 0, MIB)
                gpu.sync()
            for i, gpu in enumerate(self.gpus):
                gpu.use()
                args = [self.room[i], self.room[1 - i], self.out[i], i, rows]
                gpu.launch(self.kernels[i][MESSAGE], 1, 32, args)()
            for gpu in self.gpus:
                gpu.use()
                gpu.sync()
        self.gpus[0].use()
        return int(self.gpus[0].read(self.out[0], 8).view(np.uint64)[0])

    def us(self, load: bool, ctas: int, mib: int) -> float:
        gpu = self.gpus[0]
        gpu.use()
        args = [self.room[1], nbytes(ctas, mib), self.out[0]]
        launch = gpu.launch(self.kernels[0][moves(load)], ctas, THREADS, args)
        return self.timer.medians({"one": [launch]}, count=5)["one"][0]


class Model:
    """The same on two modelled H200s."""

    def __init__(self, profile):
        self.profile = profile

    def _launch(self, ptx: str, ctas: int, threads: int, rest: Callable[[list], list], devices=(0,)):
        """Run a kernel on each of the devices, twice; return the microseconds of the second time, and its first output.

        rest: gives the arguments of a device, from the memory of both, its own first, and its output.
        """
        import emulated_gpu
        from emulated_gpu.chip import chip_of
        from emulated_gpu.device import DEVICE

        with DEVICE.as_chip(chip_of(self.profile.name)), DEVICE.as_node(2):
            room, out = [], []
            for device in (0, 1):
                with DEVICE.on(device):
                    for found, size in ((room, 64 * MIB), (out, 64)):
                        found.append(emulated_gpu.device.allocate(size))
                        DEVICE.adopt(found[-1], "memory")
            for array in room:
                DEVICE.share(array)
            with emulated_gpu.timing(self.profile) as timed:
                for device in devices * (1 if ptx == MESSAGE else 2):
                    args = rest(device, room[device:] + room[:device], out[device])
                    emulated_gpu.launch(ptx, "kernel", ctas, threads, args, device=device)
            last = timed.run.launches[-1]
            return self.profile.us(last.end - last.start), int(out[0].view(np.uint64)[0])

    def chain(self, far: bool) -> int:
        def arguments(_, room, out):
            base = room[far].ctypes.data
            chain = room[far].view(np.uint64)[: TURNS * STRIDE // 8]
            chain[: -STRIDE // 8 : STRIDE // 8] = base + STRIDE * np.arange(1, TURNS)
            return [room[far], out]

        return self._launch(CHAIN, 1, 1, arguments)[1]

    def fence(self, far: bool) -> int:
        return self._launch(FENCE, 1, 1, lambda _, room, out: [room[far], out])[1]

    def message(self, rows: int) -> int:
        return self._launch(MESSAGE, 1, 32, lambda i, room, out: [*room, out, i, rows], (0, 1))[1]

    def us(self, load: bool, ctas: int, mib: int) -> float:
        return self._launch(moves(load), ctas, THREADS, lambda _, room, out: [room[1], nbytes(ctas, mib), out])[0]


def measure(machine: Cards | Model, only: str = "") -> dict[str, float]:
    """Return the figures whose name contains `only`: cycles a turn of GPU 0, and GB a second."""
    ask = {}
    for name, turns in (("load", machine.chain), ("store and fence", machine.fence)):
        for far in (False, True):
            ask[f"{name}, {'far' if far else 'own'} memory, cycles"] = lambda f=turns, x=far: f(x) / TURNS
    for rows in ROWS:
        ask[f"message of {512 * rows} bytes and answer, cycles"] = lambda x=rows: machine.message(x) / TURNS
    for load, ctas, mib in RATES:
        name = f"{'load' if load else 'store'}, {ctas} CTAs, GB/s"
        ask[name] = lambda x=(load, ctas, mib): nbytes(*x[1:]) / machine.us(*x) / 1e3
    return {name: round(figure(), 1) for name, figure in ask.items() if only in name}


def measure_all(file: Path) -> None:
    """Measures all figures and writes the file."""
    cards = Cards()
    lines = {"machine": cards.gpus[0].describe(), "nvidia-smi": nvidia_smi()} | measure(cards)
    text = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in lines.items())
    file.write_text(f"{{\n{text}\n}}\n")


def model(only: str, profile) -> None:
    """Prints modelled and measured figures whose name contains `only`."""
    recorded = json.loads(TABLE.read_text())
    for name, value in measure(Model(profile), only).items():
        print(f"{value:9.1f} {recorded[name]:9.1f}  {name}", flush=True)


if __name__ == "__main__":
    command.main(__doc__, TABLE, measure_all, model)
