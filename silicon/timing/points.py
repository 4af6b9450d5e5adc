"""The timed points: kernel, launch, arguments, and how each is timed. Needs no GPU and no NumPy.

Timings ("cold": before each repeat a fill of 1 GiB replaces what L2 held)
  "cold 15"     fill, then 15 launches on 15 different inputs and outputs between two events, divided by 15;
                microseconds
  "clean 15"    like "cold 15", but the fill is read first, so that L2 holds nothing that must be written back
  "cold 1"      fill, then one launch between two events; microseconds
  "warm 15"     15 launches on the same input and output, after one that was not timed; microseconds
  "clock cold"  fill, then one launch that writes differences of clock64; cycles
  "clock evicted"  other code on all SMs, then a fill, then one launch that writes differences of clock64; cycles
  "clock warm"  one launch that writes differences of clock64, without a fill, after launches that do not count; cycles
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from . import kernels

INPUTS = 15
SMS = 132


@dataclass(frozen=True)
class Source:
    """Pointer to input i of a launch: `nbytes` that the kernel only reads."""

    nbytes: int


@dataclass(frozen=True)
class Output:
    """Pointer to output i of a launch."""

    nbytes: int


@dataclass(frozen=True)
class Map:
    """A 2-D u8 tensor map by value, over input or output i: [rows, pitch] bytes, box [box_rows, 128], 128B swizzle."""

    of: str  # "source" or "output"
    pitch: int
    rows: int
    box_rows: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.pitch


@dataclass(frozen=True)
class MapList:
    """`count` maps of MAP_BOX bytes each, one after the other in input i: by value, or a pointer to them in memory."""

    count: int
    by_value: bool


@dataclass(frozen=True)
class Zeros:
    """`nbytes` zero bytes by value."""

    nbytes: int


@dataclass(frozen=True)
class Point:
    """A kernel of kernels.py with its launch, and how the launch is timed."""

    name: str
    kernel: str  # generator in kernels.py
    options: dict
    grid: int
    block: int
    args: tuple  # Source, Output, Map, MapList, Zeros or int, in the order of the kernel's parameters
    timing: str = "cold 15"
    cluster: int = 1
    shared: int = 0
    pdl: bool = False  # launch attribute: programmatic serialization
    per: float = 1  # "clock": operations in a slot, by which the value is divided
    slots: tuple = (1, None, 1)  # "clock": which slots the value is the median of, start, stop, step
    counts: dict = field(default_factory=dict)  # what it moves, for reading the table: bytes loaded, bytes stored

    @property
    def ptx(self) -> str:
        return getattr(kernels, self.kernel)(**self.options)

    @property
    def digest(self) -> str:
        """Changes with anything that the GPU saw: a time of another text or launch must not be compared."""
        launch = (
            self.grid,
            self.block,
            self.args,
            self.timing,
            self.cluster,
            self.shared,
            self.pdl,
            self.per,
            self.slots,
        )
        return hashlib.sha256((self.ptx + repr(launch)).encode()).hexdigest()[:16]

    @property
    def inputs(self) -> int:
        """How many different inputs and outputs the launches of one repeat work on."""
        return INPUTS if self.timing in ("cold 15", "clean 15") else 1

    @property
    def unit(self) -> str:
        """The unit of the point's value: "cycles" or "us", of one launch."""
        return "cycles" if self.timing.startswith("clock") else "us"


@dataclass(frozen=True)
class Case:
    """A benchmark case of the task, by the sizes that decide how many bytes it loads and stores."""

    m: int  # sum over groups
    n: int
    k: int
    groups: int

    @property
    def load_bytes(self) -> int:
        """Bytes of A, B and their scales."""
        return (self.m + self.groups * self.n) * self.k * 9 // 16

    @property
    def store_bytes(self) -> int:
        """Bytes of C."""
        return self.m * self.n * 2


CASES = {
    0: Case(1024, 4096, 7168, 8),
    1: Case(1024, 7168, 2048, 8),
    2: Case(512, 3072, 4096, 2),
    3: Case(512, 4096, 1536, 2),
}
LARGE = Case(16384, 8192, 0, 0)  # 256 MiB of output

VARIANTS = {  # name -> (options of kernels.loads, launch attribute)
    "plain": ({}, False),
    "wait": ({"pdl": "wait"}, True),
    "early": ({"pdl": "early"}, True),
    "early issued": ({"pdl": "early", "trigger": "issued"}, True),
    "wait never": ({"pdl": "wait", "trigger": "never"}, True),
}


def up(x: int, step: int) -> int:
    """x rounded up to a multiple of step."""
    return -(-x // step) * step


def loads(
    copy,
    case,
    variant,
    depth,
    chunk,
    ctas=SMS,
    tiles=None,
    cluster=1,
    multicast=False,
    prefetch=0,
    rounds=1,
    dense=False,
    nbytes=None,
    stored=True,
    idle=False,
    timing="cold 15",
):
    """A point of kernels.loads: the bytes of a case in `tiles` equal tiles, by default one for each cluster.

    rounds > 1: 128 KiB per cluster, loaded `rounds` times, so that all rounds but the first hit L2. nbytes: instead of
    the case's. Not `stored`: 16 bytes per tile instead of C. idle: the same launch, but told that there are no tiles.
    """
    options, pdl = VARIANTS[variant]
    units = ctas // cluster
    tiles = tiles or units
    wanted = 131072 if rounds > 1 else -(-(nbytes or CASES[case].load_bytes) // tiles)
    tile_bytes = up(wanted, chunk if copy == "tensor" else 128)
    out_bytes = 16 if rounds > 1 or not stored else up(-(-CASES[case].store_bytes // (tiles * cluster)), 16)
    stores = tiles * rounds * cluster * out_bytes
    counts = {"unique bytes": tiles * tile_bytes, "stored bytes": stores}
    counts["bytes into each SM"] = tiles * rounds * tile_bytes * cluster // min(ctas, SMS)
    row_boxes = 1
    if copy == "tensor":
        pitch = 128 if dense else CASES[case].k // 2
        row_boxes = pitch // 128
        rows = -(-tiles * tile_bytes // chunk // row_boxes) * (chunk // 128)
        source = Map("source", pitch, rows, chunk // 128 // (cluster if multicast else 1))
    else:
        source = Source(tiles * tile_bytes)
    name = [f"loads/{copy}", f"{rounds} rounds" if rounds > 1 else f"case {case}", variant, f"{depth}x{chunk // 1024}K"]
    name += [f"{ctas} CTAs"] if ctas != SMS else []
    name += [f"{tiles} tiles"] if tiles != units else []
    name += [f"prefetch {prefetch}"] if prefetch else []
    name += [f"cluster {cluster}", "multicast" if multicast else "each for itself"] if cluster > 1 else []
    name += ["dense"] if dense else []
    name += [f"{nbytes >> 20} MiB"] if nbytes else []
    name += ["hardly any stores"] if not stored else []
    name += ["no tiles"] if idle else []
    timing = "warm 15" if rounds > 1 else timing
    name += [timing] if rounds == 1 and timing != "cold 15" else []
    return Point(
        "/".join(name), "loads",
        {"copy": copy, "chunk": chunk, "depth": depth, "cluster": cluster, "multicast": multicast, "prefetch": prefetch}
        | options,
        ctas, 64, (source, Output(stores), 0 if idle else tiles * rounds, tiles, tile_bytes, row_boxes, out_bytes),
        timing=timing, cluster=cluster, shared=kernels.RING + depth * chunk, pdl=pdl, counts={} if idle else counts,
    )  # fmt: skip


def with_bytes(point: Point, case: int, nbytes: int) -> Point:
    """A bulk loads point of a case with `nbytes` in all into its CTAs, so that some of them load the same bytes."""
    _, output, tiles, *_ = point.args
    tile_bytes = up(-(-nbytes // tiles), 128)
    unique = min(tiles, -(-CASES[case].load_bytes // tile_bytes))
    return replace(point, args=(Source(unique * tile_bytes), output, tiles, unique, tile_bytes, *point.args[5:]))


def stores(case, width, warps, rows=32, ctas=SMS, pdl=False, timing="cold 15"):
    """A point of kernels.stores: C of a case ("large": 256 MiB) by `width` bytes per lane; ctas 0: a CTA a tile."""
    c = LARGE if case == "large" else CASES[case]
    pitch, across = c.n * 2, c.n * 2 // (32 * warps * width)
    tiles = across * c.m // rows
    grid = ctas or tiles
    name = f"stores/plain/case {case}/{width} B per lane/{warps} warps/{grid} CTAs{'/pdl' if pdl else ''}/{timing}"
    return Point(
        name, "stores", {"width": width, "rows": rows, "pdl": pdl}, grid, 32 * warps,
        (Output(c.m * pitch), tiles, across, pitch), timing=timing, pdl=pdl, counts={"stored bytes": c.m * pitch},
    )  # fmt: skip


def tma_stores(case, rows=32, boxes=2, ctas=SMS, pdl=False, timing="cold 15"):
    """A point of kernels.tma_stores: C of a case ("large": 256 MiB) by tiles of `boxes` boxes of `rows` rows."""
    c = LARGE if case == "large" else CASES[case]
    pitch, across = c.n * 2, c.n * 2 // (128 * boxes)
    tiles = across * c.m // rows
    name = f"stores/tensor/case {case}/{boxes} boxes of {rows} rows/{ctas} CTAs{'/pdl' if pdl else ''}/{timing}"
    return Point(
        name, "tma_stores", {"rows": rows, "boxes": boxes, "pdl": pdl}, ctas, 128,
        (Map("output", pitch, c.m, rows), tiles, across), timing=timing, pdl=pdl,
        shared=kernels.RING + boxes * rows * 128, counts={"stored bytes": c.m * pitch},
    )  # fmt: skip


def empty(grid, block=128, shared=0, params=64, cluster=1, pdl=False, timing="cold 15"):
    """A point of kernels.empty with `params` bytes of parameters and `shared` bytes of shared memory."""
    extra = [f"{shared // 1024}K shared"] if shared else []
    extra += [f"{params} B of parameters"] if params != 64 else []
    extra += [f"cluster {cluster}"] if cluster > 1 else []
    name = "/".join(["empty", "pdl" if pdl else "plain", f"{grid}x{block}", *extra, timing])
    return Point(
        name, "empty", {"param_bytes": params, "pdl": pdl}, grid, block, (Zeros(params),), timing=timing,
        cluster=cluster, shared=shared, pdl=pdl,
    )  # fmt: skip


def clock(name, kernel, options, args=(), block=32, grid=1, timing="clock warm", written=kernels.SLOTS, **more):
    """A point whose kernel writes `written` u32 per CTA to its first argument."""
    return Point(name, kernel, options, grid, block, (Output(4 * written * grid), *args), timing=timing, **more)


def _loads() -> list[Point]:
    """Loads kernels of the four cases: by ring, CTAs, tiles and PDL, bulk and tensor copies."""
    points = []
    for case in CASES:
        points += [
            loads("bulk", case, "plain", 6, 32768),
            loads("bulk", case, "wait", 6, 32768),
            loads("bulk", case, "wait", 6, 32768, prefetch=6),
            loads("bulk", case, "early", 6, 32768),
            loads("bulk", case, "early issued", 6, 32768),
            loads("bulk", case, "early", 3, 32768),
            loads("tensor", case, "plain", 12, 16384),
            loads("tensor", case, "wait", 12, 16384),
            loads("tensor", case, "wait", 12, 16384, prefetch=6),
            loads("tensor", case, "early", 12, 16384),
        ]
    points += [loads("bulk", case, "wait", 6, 32768, prefetch=1000) for case in (0, 3)]
    points += [loads("bulk", case, "wait never", 6, 32768) for case in (0, 2)]
    points += [
        loads("bulk", 0, "plain", d, c << 10) for d in (1, 2, 3, 4, 6) for c in (2, 4, 8, 16, 32) if (d, c) != (6, 32)
    ]
    points += [
        loads("bulk", 2, "plain", d, c << 10)
        for d, c in (
            (1, 2),
            (1, 8),
            (1, 32),
            (2, 4),
            (2, 16),
            (3, 8),
            (3, 16),
            (4, 8),
            (4, 32),
            (6, 4),
            (6, 16),
            (24, 8),
        )
    ]
    points += [loads("bulk", 2, "wait", d, c << 10) for d, c in ((1, 8), (2, 16), (4, 8), (6, 16))]
    for case in (0, 2):
        points += [loads("bulk", case, "plain", 3, 16384, ctas) for ctas in (66, 99, 264)]
        points += [loads("bulk", case, "plain", 6, 32768, ctas) for ctas in (66, 99)]
        points += [loads("bulk", case, "early", 3, 32768, 264), loads("bulk", case, "wait", 3, 32768, 264)]
    for case, tile_counts in ((0, (132, 198, 229, 264, 400, 462, 528)), (2, (132, 198, 264, 462))):
        for variant in ("plain", "wait", "early") if case == 0 else ("plain", "early"):
            points += [
                loads("bulk", case, variant, 24, 8192, tiles=t)
                for t in tile_counts
                if (case, variant, t) != (2, "plain", 132)
            ]
    points += [
        loads("bulk", 0, "plain", d, c << 10, rounds=16)
        for d, c in ((1, 2), (1, 8), (2, 8), (4, 8), (4, 16), (4, 32), (6, 32))
    ]

    points += [loads("tensor", 0, "plain", d, 16384) for d in (1, 2, 3, 4, 6)]
    points += [loads("tensor", 0, "plain", d, c << 10) for d, c in ((4, 2), (4, 4), (4, 8), (6, 32), (8, 8))]
    points += [loads("tensor", 2, "plain", d, c << 10) for d, c in ((1, 16), (2, 16), (4, 16), (6, 16), (4, 8), (8, 8))]
    points += [loads("tensor", case, "plain", 6, 16384, ctas) for case in (0, 2) for ctas in (66, 99, 264)]
    points += [loads("tensor", case, "plain", 12, 16384, dense=True) for case in (0, 2)]
    points += [loads("tensor", 0, "plain", d, 16384, rounds=16) for d in (1, 4, 12)]
    return points


def _other_states() -> list[Point]:
    """Loads from clean and warm L2, single launches, without work, without stores, and far more than L2 holds."""
    points = []
    for copy, depth, chunk in (("bulk", 6, 32768), ("tensor", 12, 16384)):
        points += [loads(copy, case, "plain", depth, chunk, timing="clean 15") for case in CASES]
        points += [loads(copy, case, "plain", depth, chunk, timing="cold 1") for case in CASES]
        points += [loads(copy, case, v, depth, chunk, timing="warm 15") for case in (2, 3) for v in ("plain", "wait")]
        points += [loads(copy, 0, variant, depth, chunk, idle=True) for variant in ("plain", "wait", "early")]
        points += [loads(copy, case, "plain", depth, chunk, stored=False) for case in (0, 2)]
    points += [loads("bulk", 2, v, 3, 32768, 264, idle=True) for v in ("plain", "wait", "early")]
    points += [loads("bulk", 0, "plain", 6, 32768, nbytes=1800 << 20, stored=False, timing="cold 1")]
    points += [loads("tensor", 2, v, 6, 16384, 264) for v in ("wait", "early")]
    return points


def _multicast() -> list[Point]:
    """Loads kernels in clusters, with multicast and each CTA for itself."""
    points = []
    for cluster, ctas in ((2, 132), (4, 120)):
        for multicast in (False, True):
            common = {"ctas": ctas, "cluster": cluster, "multicast": multicast}
            for case in (0, 2):
                points += [loads(copy, case, "plain", 12, 16384, **common) for copy in ("bulk", "tensor")]
            points += [loads("bulk", 0, "plain", d, 16384, rounds=16, **common) for d in (2, 12)]
            points += [loads("tensor", 3, "wait", 12, 16384, **common)]
    return points


def _stores() -> list[Point]:
    """Plain and tensor stores of C, and of 256 MiB."""
    points = []
    for case in CASES:
        points += [stores(case, 2, 4), stores(case, 16, 4), tma_stores(case), stores(case, 2, 4, pdl=True)]
    points += [stores(case, 4, 4) for case in (0, 1)]
    for case in (0, 1):
        points += [stores(case, 2, 8), stores(case, 2, 4, ctas=0), stores(case, 2, 4, ctas=264), stores(case, 4, 8)]
        points += [stores(case, 2, 1, ctas=SMS), stores(case, 16, 1, ctas=SMS)]
        points += [tma_stores(case, rows=128), tma_stores(case, rows=32, boxes=8), tma_stores(case, pdl=True)]
        points += [
            stores(case, 2, 4, timing="warm 15"),
            stores(case, 16, 4, timing="warm 15"),
            tma_stores(case, timing="warm 15"),
        ]
    points += [
        stores("large", 16, 4, timing="cold 1"),
        tma_stores("large", timing="cold 1"),
        stores("large", 2, 4, timing="cold 1"),
    ]
    points += [tma_stores(case, ctas=ctas) for case in (0, 2) for ctas in (66, 264)]
    return points


def _empty() -> list[Point]:
    """Empty kernels, by grid, block, shared memory, parameters, clusters and PDL."""
    points = []
    for pdl in (False, True):
        points += [empty(grid, pdl=pdl) for grid in (1, 8, 33, 66, 132, 264, 528, 1056, 4224)]
        points += [empty(SMS, block=b, pdl=pdl) for b in (32, 256, 512, 1024)]
        points += [empty(SMS, shared=s << 10, pdl=pdl) for s in (48, 100, 200)]
        points += [empty(SMS, params=p, pdl=pdl) for p in (1024, 2048, 4096)]
        points += [empty(SMS, cluster=c, pdl=pdl) for c in (2, 4)]
        points += [empty(grid, shared=200 << 10, pdl=pdl) for grid in (264, 528, 1056)]
    points += [empty(SMS, block=192, shared=200 << 10, params=4096, cluster=2, pdl=pdl) for pdl in (False, True)]
    points += [empty(grid, timing=t) for grid in (1, 132) for t in ("cold 1", "warm 15")]
    return points


def _maps() -> list[Point]:
    """Uses of tensor maps, first and second, and maps edited in the kernel."""
    points = []
    for maps in (1, 4, 16, 32):
        for where in ("param", "global"):
            common = {
                "args": (MapList(maps, where == "param"), Source(maps * kernels.MAP_BOX)),
                "grid": SMS, "written": 2 * maps, "shared": kernels.RING + kernels.MAP_BOX,
            }  # fmt: skip
            options = {"maps": maps, "where": where, "prefetch": False}
            name = f"{maps} in {where}"
            points += [
                clock(f"maps/first use/{name}", "map_use", options, slots=(0, maps, 1), **common),
                clock(
                    f"maps/first use, cold/{name}",
                    "map_use",
                    options,
                    slots=(0, maps, 1),
                    **common | {"timing": "clock cold"},
                ),
                clock(f"maps/second use/{name}", "map_use", options, slots=(maps, None, 1), **common),
                clock(
                    f"maps/first use, prefetched/{name}",
                    "map_use",
                    options | {"prefetch": True},
                    slots=(0, maps, 1),
                    **common,
                ),
            ]
    steps = ("replaced", "published", "acquired", "first load", "second load")
    for updates in (1, 2, 4):
        for grid in (1, SMS) if updates == 1 else (SMS,):
            points += [
                clock(
                    f"maps/edit/{updates} at a time/{step}/{grid} CTAs", "map_edit", {"updates": updates},
                    (
                        Map("source", 128, 64, 64), Output(128 * updates * grid),
                        Source((updates * kernels.EDIT_ROUNDS + 1) * kernels.MAP_BOX),
                    ),
                    grid=grid, written=5 * kernels.EDIT_ROUNDS, shared=kernels.RING + kernels.MAP_BOX + 128 * updates,
                    slots=(5 + i, None, 5),
                )
                for i, step in enumerate(steps)
            ]  # fmt: skip
    for in_flight, other in ((1, False), (4, False), (8, False), (8, True)):
        for grid in (1, SMS):
            cold, whose = in_flight * kernels.IN_FLIGHT, " of another warp" if other else ""
            points += [
                clock(
                    f"mechanisms/maps/edit behind {in_flight} loads{whose}/{step}/{grid} CTAs",
                    "map_edit", {"updates": 1, "in_flight": in_flight, "other_warp": other},
                    (
                        Map("source", 128, 64, 64), Output(128 * grid),
                        Source((kernels.EDIT_ROUNDS + 1) * kernels.MAP_BOX),
                        Source(kernels.COLD + cold * kernels.EDIT_ROUNDS * grid),
                    ),
                    block=64 if other else 32, grid=grid, written=5 * kernels.EDIT_ROUNDS, slots=(5 + i, None, 5),
                    shared=kernels.RING + kernels.MAP_BOX + 128 + cold, timing="clock cold",
                )
                for i, step in enumerate(steps)
            ]  # fmt: skip
    return points


def _copies() -> list[Point]:
    """Single copies, bursts of all SMs, and the first copies of a ring."""
    points = []
    for nbytes in (512, 2048, 8192, 16384, 32768, 65536):
        for copy in ("bulk", "tensor"):
            if copy == "tensor" and nbytes > 32768:
                continue  # a box has at most 256 rows
            for where in ("L2", "DRAM"):
                total = kernels.SLOTS * nbytes
                for grid in (1, SMS) if nbytes in (2048, 16384) else (1,):
                    source = (
                        Map("source", 128, grid * total // 128, nbytes // 128)
                        if copy == "tensor"
                        else Source(grid * total)
                    )
                    points.append(clock(
                        f"latency/{copy} load/{where}/{nbytes} B/{grid} CTAs", "copy_latency",
                        {"copy": copy, "nbytes": nbytes, "resident": where == "L2"}, (source,), grid=grid,
                        timing="clock warm" if where == "L2" else "clock cold", shared=kernels.RING + nbytes,
                    ))  # fmt: skip
    for stages, chunk in ((6, 32768), (12, 16384), (3, 16384)):
        for state in ("cold", "warm"):
            for i in sorted({0, stages // 2, stages - 1}):
                points.append(clock(
                    f"mechanisms/bursts/fill/{stages}x{chunk >> 10}K/{state}/copy {i}", "ring_fill",
                    {"stages": stages, "chunk": chunk}, (Source(SMS * stages * chunk),), grid=SMS, written=stages,
                    timing=f"clock {state}", shared=kernels.RING + stages * chunk, slots=(i, i + 1, 1),
                ))  # fmt: skip
    for stages, chunk, grid in (
        *((stages, 16384, SMS) for stages in (1, 2, 6)),
        *((stages, chunk, SMS) for chunk in (4096, 8192) for stages in (1, 12)),
        *((12, 16384, grid) for grid in (1, 8, 33, 66, 99)),
    ):  # from L2: "slots" has each copy's
        points.append(clock(
            f"mechanisms/bursts/fill/{stages}x{chunk >> 10}K/warm/copy 0/{grid} CTAs", "ring_fill",
            {"stages": stages, "chunk": chunk}, (Source(grid * stages * chunk),), grid=grid, written=stages,
            timing="clock warm", shared=kernels.RING + 12 * 16384, slots=(0, 1, 1),
        ))  # fmt: skip
    for nbytes in (4096, 16384, 65536):
        for where in ("L2", "DRAM"):
            for touched, together in ((False, False), (True, False), (False, True), (True, True)):
                names = ["all SMs"] + ["touched"] * touched + ["together"] * together
                options = {"copy": "bulk", "nbytes": nbytes, "touched": touched, "together": together}
                for which, slots in (("first", (0, 1, 1)), ("later", (2, None, 1))):
                    points.append(clock(
                        f"mechanisms/bursts/{where}/{nbytes} B/{', '.join(names)}/{which}", "copy_latency",
                        options | {"resident": where == "L2"}, (Source(SMS * kernels.SLOTS * nbytes),), grid=SMS,
                        timing="clock warm" if where == "L2" else "clock cold", shared=kernels.RING + nbytes,
                        slots=slots,
                    ))  # fmt: skip
    for nbytes in (512, 8192, 32768):
        for wait in ("wait_group.read", "wait_group"):
            points.append(clock(
                f"latency/bulk store/{wait}/{nbytes} B", "store_latency", {"nbytes": nbytes, "wait": wait},
                (Output(kernels.SLOTS * nbytes),), shared=kernels.RING + nbytes,
            ))  # fmt: skip
    return points


def _mechanisms() -> list[Point]:
    """List the points that tell how lines are shared on their way from L2, and what prefetches cost."""
    sharing = []
    for cluster, ctas in ((2, SMS), (4, 120)):
        for depth, multicast in ((1, True), (4, True), (1, False), (3, False), (4, False), (6, False)):
            sharing.append(
                loads("bulk", 0, "plain", depth, 16384, ctas, cluster=cluster, multicast=multicast, rounds=16)
            )
    for cluster, multicast in ((1, False), (2, False), (2, True), (4, True)):
        sharing.append(loads("bulk", 0, "plain", 1, 16384, 4, cluster=cluster, multicast=multicast, rounds=16))
    ahead = [
        loads("bulk", case, "wait", 6, 32768, prefetch=n)
        for case, n in ((0, 1), (0, 3), (2, 1), (2, 2), (2, 4), (3, 1))
    ]
    ahead += [loads("tensor", 2, "wait", 12, 16384, prefetch=n) for n in (2, 12)]
    ahead += [loads("bulk", 2, "wait", 6, 32768, prefetch=n, timing="warm 15") for n in (2, 4)]
    points = [replace(p, name=p.name.replace("loads", "sharing", 1)) for p in sharing]
    points += [replace(p, name=p.name.replace("loads", "prefetch", 1)) for p in ahead]
    for count in (0, 1, 2, 4, 6):
        for own in (False, True) if count else (False,):
            for grid in (1, SMS):
                what = "its first chunk" if own else "512 B"
                points.append(clock(
                    f"prefetch/{what} behind {count}x32K/{grid} CTAs", "behind_prefetches",
                    {"count": count, "chunk": 32768, "own": own}, (Source(grid * kernels.SLOTS * max(count, 1) << 15),),
                    grid=grid, timing="clock cold", shared=kernels.RING + 32768, slots=(0, 1, 1),
                ))  # fmt: skip
    return points


def _instructions() -> list[Point]:
    """Dependent and independent instructions, and code that is fetched."""
    points = [clock("clock/nothing", "nothing", {})]
    points += [clock(f"chain/{name}", "chain", {"name": name}, per=256 * n) for name, (_, n) in kernels.CHAINS.items()]
    for name in ("fma.f32", "add.s32", "mad.s32", "cvt.f16x2"):
        for warps in (1, 4, 8, 16):
            points.append(
                clock(f"issue/{name}/{warps} warps", "independent", {"name": name}, block=32 * warps, per=512)
            )
    for n in (256, 500, 1000, 2000, 4000, 8000):
        code = {"kernel": "straight", "options": {"instructions": n}}
        for grid in (1, SMS):
            name = f"code/{n} instructions/evicted/{grid} CTAs"
            points.append(clock(name, timing="clock evicted", slots=(0, 1, 1), grid=grid, **code))
        points.append(clock(f"code/{n} instructions/first of a later launch", slots=(0, 1, 1), grid=SMS, **code))
        points.append(clock(f"code/{n} instructions/again", grid=SMS, **code))
    return points


def _single_loads() -> list[Point]:
    """elect.sync, and loads and divisions of which each depends on the one before."""
    shared, pages = kernels.RING + 4096, (Source(4096 * 16 * 8), 0)
    points = [
        clock("latency/elect", "elect", {}, per=64),
        clock("latency/ld.shared", "load_chase", {"space": "shared"}, per=16, shared=shared),
        clock("latency/ld.global/L2", "load_chase", {"space": "global"}, pages, per=16),
        clock("latency/ld.global/DRAM", "load_chase", {"space": "global"}, pages, per=16, timing="clock cold"),
        clock("mechanisms/ld.global/L1", "load_chase", {"space": "global", "stride": 0}, pages, per=16),
    ]
    for stride in (8, 64, 256):
        for what, slots in (("first", (0, 1, 1)), ("again", (1, None, 1))):
            points.append(clock(
                f"mechanisms/ld.param/every {stride} B/{what}", "parameter_chase", {"stride": stride}, (Zeros(4096),),
                grid=SMS, per=16, slots=slots,
            ))  # fmt: skip
    for what in ("of each lane", "uniform"):
        points.append(clock(f"mechanisms/div.u32/{what}", "divisions", {"uniform": what == "uniform"}, per=16))
    return points


def _one_word() -> list[Point]:
    """A word, or a few, that all warps load at once."""

    def point(what: str, options: dict, grid: int, warps: int, nbytes: int = 64, **more) -> Point:
        name = f"mechanisms/{what}/{warps} warps/{grid} CTAs"
        return clock(name, "one_word", options, (Source(nbytes), 0), block=32 * warps, grid=grid, **more)

    alone = (1, 1), (1, 12), (SMS, 1), (SMS, 12)  # CTAs, warps
    more = [(SMS, warps) for warps in (2, 4, 6, 8, 16, 24, 32)] + [(grid, 12) for grid in (16, 33, 66, 99)]
    points = [point("ld.relaxed.gpu/the same word", {}, grid, warps, per=4) for grid, warps in (*alone, *more)]
    for what, apart, of in (("4 words of a line", 32, 4), ("12 lines", 128, 12), ("a line each", 128, 4224)):
        for warps in (12, 32):
            options = {"apart": apart, "of": of}
            points.append(point(f"ld.relaxed.gpu/{what}", options, SMS, warps, apart * of, per=4))
    for grid, warps in ((1, 1), (1, 12), (SMS, 12)):
        points.append(point("ld.acquire.gpu/the same word", {"load": "ld.acquire.gpu"}, grid, warps, per=4))
    for load in ("ld.relaxed.gpu", "ld"):
        for grid, warps in ((1, 1), (SMS, 1), (SMS, 12)):
            options = {"load": load, "steps": 1}
            cold = {"timing": "clock cold", "slots": (0, 1, 1)}
            points.append(point(f"{load}/the same word, cold", options, grid, warps, **cold))
    return points


def _hand_overs() -> list[Point]:
    """Atomics, fences, barriers of CTAs and clusters, and mbarriers."""
    shared = kernels.RING + 4096
    points = [
        clock("latency/atom.shared", "atomics", {"space": "shared"}, per=16, shared=shared),
        clock("latency/atom.global", "atomics", {"space": "global"}, (Output(4),), per=16),
    ]
    points += [
        clock(f"latency/fence.{kind}", "fences", {"kind": kind}, per=16)
        for kind in ("acq_rel.gpu", "acq_rel.cta", "proxy.async.shared::cta")
    ]
    points += [
        clock(f"latency/bar.sync/{t} threads", "cta_barrier", {}, block=t, per=16)
        for t in (32, 64, 128, 256, 512, 1024)
    ]
    points += [
        clock(
            f"latency/barrier.cluster/{size} CTAs of {t}", "cluster_barrier", {}, block=t, grid=size, cluster=size,
            per=16,
        )
        for size, t in ((2, 32), (2, 256), (4, 256))
    ]  # fmt: skip
    points += [
        clock("latency/mbarrier/arrive and wait, one warp", "mbarrier_alone", {}, per=16, shared=shared),
        clock("latency/mbarrier/try_wait of a complete phase", "mbarrier_ready", {}, per=16, shared=shared),
        clock("latency/mbarrier/hand-over", "mbarrier_ping_pong", {"remote": False}, block=64, per=32, shared=shared),
    ]
    points += [
        clock(
            f"latency/mbarrier/hand-over in a cluster{release}", "mbarrier_ping_pong",
            {"remote": True, "release": release}, grid=2, cluster=2, per=32, shared=shared,
        )
        for release in ("", ".release.cluster")
    ]  # fmt: skip
    return points


def _issue() -> list[Point]:
    """Stores to global memory and accesses to shared memory in a row, with and without conflicts."""
    points = []
    for width in (2, 4, 16):
        for warps in (1, 4, 8):
            room = Output(32 * warps * width * 64 * kernels.SLOTS)
            points.append(
                clock(
                    f"issue/st.global {width} B/{warps} warps",
                    "store_issue",
                    {"width": width},
                    (room,),
                    32 * warps,
                    per=64,
                )
            )
    for width in (2, 16):
        room = Output(128 * width * 64 * kernels.SLOTS * SMS)
        points.append(clock(
            f"issue/st.global {width} B/4 warps, all SMs", "store_issue", {"width": width}, (room,), 128,
            grid=SMS, per=64,
        ))  # fmt: skip
    for width in (2, 16):
        for grid in (1, SMS):
            points.append(clock(
                f"issue/st.global {width} B scattered/4 warps/{grid} CTAs", "scattered_stores", {"width": width},
                (Output(grid * 128 * 8192),), 128, grid=grid, per=64,
            ))  # fmt: skip
    for kind in ("stmatrix", "st.v4", "st", "ld", "ld.v4"):
        for warps in (1, 4):
            points.append(clock(
                f"issue/shared {kind}/{warps} warps", "shared_issue", {"kind": kind}, block=32 * warps, per=32,
                shared=20480,
            ))  # fmt: skip
    for kind in ("st", "ld"):
        for ways in (2, 4, 8, 32):
            for warps in (1, 4):
                points.append(clock(
                    f"mechanisms/shared {kind}, {ways} lanes a bank/{warps} warps", "shared_issue",
                    {"kind": kind, "ways": ways}, block=32 * warps, per=32, shared=20480,
                ))  # fmt: skip
    return points


POINTS = [
    *_loads(), *_other_states(), *_multicast(), *_stores(), *_empty(), *_maps(), *_copies(), *_instructions(),
    *_single_loads(), *_one_word(), *_hand_overs(), *_issue(), *_mechanisms(),
]  # fmt: skip
assert len({p.name for p in POINTS}) == len(POINTS), "a name stands for one point"
