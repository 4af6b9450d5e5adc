"""Programs whose fault shows under some orders of events only: no rule of order is broken on the way to it.

    python -m tests.emulated_gpu.machine.order_dependent  # which schedules find which, and how many the first ones do

Each has a right state, which no schedule may find anything in. A schedule finds a fault if it reports one, or if the
output is not what the program is meant to leave.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np

import emulated_gpu

WORK = "mov.b32 x, 300; {0}: sub.u32 x, x, 1; setp.ne.u32 p, x, 0; @p bra {0};"  # between quick and slow
WAIT = "{0}: mbarrier.try_wait.parity.shared::cta.b64 q, [{1}], {2}; @!q bra {0};"
INIT = """@lead mbarrier.init.shared::cta.b64 [full], {0}; @lead mbarrier.init.shared::cta.b64 [empty], {1};
    fence.mbarrier_init.release.cluster; bar.sync 0;"""
LOAD = """mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [in], 256, [full];"""
SPIN = """{0}: nanosleep.u32 500; ld.acquire.gpu.global.u32 y, {1}; setp.lt.u32 p, y, 2; add.u32 b, b, 1;
    setp.lt.u32 q, b, 500; and.pred p, p, q; @p bra {0};"""  # until two have come, or for this many turns


@dataclass(frozen=True)
class Program:
    """body: PTX, with `buggy` or `right` in place of {}. output: the first words that the right state leaves; None:
    they are not looked at. launch: options beside one CTA of 64 threads."""

    name: str
    body: str
    buggy: str
    right: str
    output: tuple[int, ...] | None = None
    launch: dict = field(default_factory=dict)


def text(body: str) -> str:
    """A kernel around a body: out and in, 2 KiB of tile, two mbarriers."""
    return f""".version 8.8\n.target sm_100a\n.address_size 64
        .visible .entry kernel(.param .u64 p_out, .param .u64 p_in) .maxntid 384 .minnctapersm 1 {{
        .shared .align 1024 .b8 tile[2048]; .shared .align 8 .b64 full; .shared .align 8 .b64 empty;
        .reg .b32 tid, warp, cta, lane, mine, a, b, x, y, z; .reg .b64 out, in, at; .reg .pred p, q, lead, first, one;
        mov.u32 tid, %tid.x; shr.u32 warp, tid, 5; and.b32 lane, tid, 31; mov.u32 cta, %ctaid.x;
        ld.param.u64 out, [p_out]; ld.param.u64 in, [p_in]; setp.eq.u32 lead, tid, 0; setp.lt.u32 first, tid, 32;
        setp.eq.u32 one, lane, 0; mov.b32 mine, tile; mad.lo.u32 mine, tid, 4, mine; mov.b32 x, 0; mov.b32 y, 0;
        {body} ret; }}"""


ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [full];"
PROGRAMS = (
    Program(
        "a phase that a late waiter misses, warp 1",
        f"""{INIT.format(1, 32)} @!first bra WAITER; {{}} bra END; WAITER: {WAIT.format("W", "full", 0)}
        mbarrier.arrive.shared::cta.b64 _, [empty]; END:""",
        f"@lead {ARRIVE} {WORK.format('L')} @lead {ARRIVE}",
        f"@lead {ARRIVE} {WAIT.format('E', 'empty', 0)} @lead {ARRIVE}",
    ),
    Program(
        "a phase that a late waiter misses, warp 0",
        f"""{INIT.format(1, 32)} @first bra WAITER; {{}} bra END; WAITER: {WAIT.format("W", "full", 0)}
        mbarrier.arrive.shared::cta.b64 _, [empty]; END:""",
        f"@one {ARRIVE} {WORK.format('L')} @one {ARRIVE}",
        f"@one {ARRIVE} {WAIT.format('E', 'empty', 0)} @one {ARRIVE}",
    ),
    Program(
        "a counter that is reset before the other CTA has seen it full",
        f"""@!lead ret; atom.add.acq_rel.gpu.global.u32 x, [out], 1; mov.b32 b, 0; {SPIN.format("S", "[out]")}
        {{}} setp.eq.u32 q, x, 1; @q st.release.gpu.global.u32 [out], 0;
        mad.wide.u32 at, x, 4, out; setp.lt.u32 p, b, 500; selp.u32 a, 1, 0, p; st.global.b32 [at+8], a;""",
        "",
        "atom.add.acq_rel.gpu.global.u32 z, [out+4], 1; " + SPIN.format("T", "[out+4]"),
        (0, 2, 1, 1), {"grid": 2, "threads": 32},
    ),
    Program(
        "two locks, taken in two orders",
        """@!one ret; mov.b32 a, 0; {} xor.b32 z, a, 4; cvt.u64.u32 at, a; add.u64 at, at, out; cvt.u64.u32 in, z;
        add.u64 in, in, out; mov.b32 b, 0;
        A: nanosleep.u32 500; atom.cas.acquire.gpu.global.b32 x, [at], 0, 1; setp.ne.u32 p, x, 0; @p bra A;
        B: nanosleep.u32 500; atom.cas.acquire.gpu.global.b32 x, [in], 0, 1; setp.eq.u32 p, x, 0; @p bra HAVE;
        add.u32 b, b, 1; setp.lt.u32 p, b, 100; @p bra B; st.release.gpu.global.b32 [out+8], 1; bra FREE;
        HAVE: st.release.gpu.global.b32 [in], 0; FREE: st.release.gpu.global.b32 [at], 0;""",
        "@!first mov.b32 a, 4;", "", (0, 0, 0),
    ),
    Program(
        "the last of two writers is meant to be CTA 1",
        """@!lead ret; {} atom.exch.relaxed.gpu.global.b32 x, [out], cta; red.release.gpu.global.add.u32 [out+4], 1;""",
        "",
        """setp.eq.u32 p, cta, 0; @p bra GO; S: ld.acquire.gpu.global.u32 y, [out+4]; setp.eq.u32 p, y, 0; @p bra S;
        GO:""",
        (1, 2), {"grid": 2, "threads": 32},
    ),
    Program(
        "who finds the copy not there reads its place all the same",
        f"""{INIT.format(1, 32)} @!lead bra READ; {LOAD} READ: {WORK.format("L")}
        mbarrier.test_wait.parity.shared::cta.b64 q, [full], 0; @q bra DONE; {{}} DONE: ld.shared.b32 y, [mine];
        mad.wide.u32 at, tid, 4, out; st.global.b32 [at], y; {WAIT.format("V", "full", 0)}""",
        "", WAIT.format("W", "full", 0), tuple(range(64)),
    ),
    Program(
        "the warp that comes first is taken for warp 0",
        """@!one ret; atom.global.add.u32 x, [out+64], 1; {} mad.wide.u32 at, x, 4, out; st.global.b32 [at], warp;""",
        "", "mov.b32 x, warp;", (0, 1),
    ),
    Program(
        "a ticket is taken for the number of the CTA",
        """@!lead ret; atom.global.add.u32 x, [out+64], 1; {} mad.wide.u32 at, x, 4, out; st.global.b32 [at], cta;""",
        "", "mov.b32 x, cta;", (0, 1, 2, 3), {"grid": 4, "threads": 32},
    ),
    Program(
        "a queue is taken for empty before its producer has begun",
        """@!one ret; @first bra MAKE; {} S: ld.acquire.gpu.global.u32 x, [out]; setp.eq.u32 p, x, 0; @p bra NONE;
        st.global.b32 [out+4], 7; NONE: ret; MAKE: st.release.gpu.global.u32 [out], 1;""",
        "", "T: ld.acquire.gpu.global.u32 x, [out]; setp.eq.u32 p, x, 0; @p bra T;", (1, 7),
    ),
    Program(
        "the same, of a producer that is not the first warp",
        """@!one ret; @!first bra MAKE; {} S: ld.acquire.gpu.global.u32 x, [out]; setp.eq.u32 p, x, 0; @p bra NONE;
        st.global.b32 [out+4], 7; NONE: ret; MAKE: st.release.gpu.global.u32 [out], 1;""",
        WORK.format("L"), "T: ld.acquire.gpu.global.u32 x, [out]; setp.eq.u32 p, x, 0; @p bra T;", (1, 7),
    ),
    Program(
        "a wait that gives up after some looks",
        f"""{INIT.format(1, 32)} @!lead bra READ; {LOAD} READ: mov.b32 b, 0; {{}}
        @q bra HERE; mov.b32 z, 9; bra OUT; HERE: ld.shared.b32 z, [mine]; OUT: mad.wide.u32 at, tid, 4, out;
        st.global.b32 [at], z; {WAIT.format("V", "full", 0)}""",
        """S: mbarrier.test_wait.parity.shared::cta.b64 q, [full], 0; add.u32 b, b, 1; setp.lt.u32 p, b, 200;
        @q bra HERE; @p bra S;""",
        WAIT.format("W", "full", 0) + " setp.eq.u32 q, tid, tid;", tuple(range(64)),
    ),
    *(
        Program(
            f"the last entry of a queue comes between two looks, its producer is CTA {producer}",
            f"""@!lead ret; setp.eq.u32 p, cta, {producer}; @p bra MAKE; S: {{}} setp.eq.u32 p, y, 0; @p bra S;
            st.global.b32 [out+8], x; ret; MAKE: st.release.gpu.global.u32 [out], 1;
            st.release.gpu.global.u32 [out], 2; st.release.gpu.global.u32 [out+4], 1;""",
            "ld.acquire.gpu.global.u32 x, [out]; ld.acquire.gpu.global.u32 y, [out+4];",
            "ld.acquire.gpu.global.u32 y, [out+4]; ld.acquire.gpu.global.u32 x, [out];",
            (2, 1, 2), {"grid": 2, "threads": 32},
        )
        for producer in (0, 1)
    ),
    Program(
        "lane 0 is taken for the elected one",
        """elect.sync _|p, -1; @p mad.wide.u32 at, {}, 4, out; mov.b32 b, 5; @p st.global.b32 [at], b;""",
        "lane", "0", (5,), {"threads": 32},
    ),
)


def found(program: Program, right: bool, schedule: int) -> str:
    """What a schedule finds of a program: the kind of the fault, "output", or "" for nothing."""
    out, source = np.zeros(512, np.int32), np.arange(512, dtype=np.int32)
    options = {"grid": 1, "threads": 64} | program.launch
    grid, threads = options.pop("grid"), options.pop("threads")
    body = program.body.replace("{}", program.right if right else program.buggy)
    try:
        with emulated_gpu.session(schedule, strict=True):
            emulated_gpu.launch(text(body), "kernel", grid, threads, [out, source], **options)
    except emulated_gpu.EmulatorError as error:
        return error.kind
    wanted = program.output
    return "" if wanted is None or out[: len(wanted)].tolist() == list(wanted) else "output"


def main(count: int) -> None:
    """Print a row for each program: X for each schedule that finds it; then what each four schedules find together."""
    table = {p.name: [found(p, False, schedule) for schedule in range(count)] for p in PROGRAMS}
    for p in PROGRAMS:
        kinds = sorted({kind for kind in table[p.name] if kind})
        print("".join(".X"[bool(kind)] for kind in table[p.name]), f" {p.name}: {', '.join(kinds) or 'nothing'}")
        if wrong := [schedule for schedule in range(count) if found(p, True, schedule)]:
            print(f"    its right state is found fault with by {wrong}")
    for first in range(0, count - 3, 4):
        four = sum(any(row[first : first + 4]) for row in table.values())
        print(f"schedules {first} to {first + 3}: {four} of {len(PROGRAMS)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32)
