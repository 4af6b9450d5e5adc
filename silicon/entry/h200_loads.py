"""Times the submission's loads and stores on an H200 (sm_90a), beside a kernel that only loads.

    python -m silicon.entry.h200_loads compile FOLDER    where CuTe DSL is: writes kernels and launch parameters
    python3 -m silicon.entry.h200_loads run FOLDER       where the H200 is, with NumPy: writes FOLDER/h200_loads.json
    python3 -m silicon.entry.h200_loads table            prints h200_loads.json, beside this file, as Markdown
    python -m silicon.entry.h200_loads model             prints what the timing model says beside it

The kernel is compiled from submission.py with its schedule, words, tensormaps, boxes, ring, barriers, PDL and epilogue.
Only these functions of its PTX layer differ, because an H200 has no tcgen05 and its driver refuses FP4 tensormaps:
  * mma with its copies of scales, fences: nothing; mma_commit arrives at once
  * tmem_load: constants, so that the epilogue stores as many bytes the same way: every element of C becomes 1
  * fp4_tensormap, dual_fp4_tensormap: u8 of the same bytes, at half the x
  * tma_load: without .cta_group, a copy signals its own CTA. Each CTA of a pair awaits its own bytes and has a consumer
    warp; a stage is free when those of all CTAs of the cluster have passed.
The benchmark cases keep their sizes; the schedule is that of 132 SMs, or of the 30 clusters of 4 CTAs that fit them.
Times are "cold 15" of silicon/timing: an L2-flushing fill, then 15 launches on 15 inputs between two events, divided by
15; median of 20. "Inputs in L2": all 15 on the same input, whose bytes then need not come from DRAM (as far as 50 MB
hold them).
The loads-only kernel (silicon/timing/kernels.py, `loads`) is measured in the same run: one CTA per SM copies an equal
share of the case's bytes, each byte once, to a ring, and writes the case's C bytes.
"""

import base64
import dataclasses
import datetime
import hashlib
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import nvidia_smi
from silicon.timing.points import INPUTS, POINTS, with_bytes
from silicon.timing.record import Bench

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_suffix(".json")
CTAS = 2  # of an MMA
FIT = {2: 132, 4: 120}  # CTAs that run at once in clusters of this many
SCALED = {2: {"tokens": 160}}  # 36 clusters of 4 would take two rounds, 24 take one
CASES = (  # (M of each group), N, K
    ((80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168),
    ((40, 76, 168, 72, 164, 148, 196, 160), 7168, 2048),
    ((192, 320), 3072, 4096),
    ((128, 384), 4096, 1536),
)
MODES = {  # PDL mode: (entries as of VARIANTS, the loads-only point of that mode)
    "plain launches": ({"pdl": False}, "loads/bulk/case {}/plain/6x32K"),
    "PDL, wait first": ({"prefetch": 0}, "loads/bulk/case {}/wait/6x32K"),
    "PDL, L2 prefetch before the wait": ({}, "loads/bulk/case {}/wait/6x32K/prefetch 6"),
    "PDL, weights do not wait": ({"prefetch": 0, "without": "wait for weights"}, "loads/bulk/case {}/early/6x32K"),
}
SUBMITTED, EARLY = list(MODES)[2:]
FIRST, NORMAL, LAST = "evict_first", "evict_normal", "evict_last"
VARIANTS = {  # of the submitted mode: entries of the Config and what the kernel leaves out ("without")
    "prefetch 1": {"prefetch": 1},
    "prefetch 2": {"prefetch": 2},
    "prefetch 3": {"prefetch": 3},
    "prefetch 4": {"prefetch": 4},
    "prefetch 6": {"prefetch": 6},
    "L2: weights go first, tokens last": {"weight_policy": FIRST, "token_policy": LAST, "store_policy": NORMAL},
    "L2: weights go first, C last": {"weight_policy": FIRST, "token_policy": NORMAL, "store_policy": LAST},
    "L2: C goes last": {"weight_policy": NORMAL, "token_policy": NORMAL, "store_policy": LAST},
    "L2: no policy": {"weight_policy": NORMAL, "token_policy": NORMAL, "store_policy": NORMAL},
    "prefetch 1, up to 96 tokens a tile": {"prefetch": 1, "tokens": 96, "sharers": 1},
    "prefetch 1, two sharers, up to 96 tokens a tile": {"prefetch": 1, "tokens": 96, "sharers": 2, "gran": 128},
    "prefetch 1, up to 128 tokens a tile": {"prefetch": 1, "tokens": 128, "sharers": 1},
    "prefetch 1, up to 160 tokens a tile": {"prefetch": 1, "tokens": 160, "sharers": 1},
    "prefetch 1, up to 256 tokens a tile": {"prefetch": 1, "tokens": 256, "sharers": 1},
    "prefetch 1, two sharers, up to 160 tokens a tile": {"prefetch": 1, "tokens": 160, "sharers": 2, "gran": 128},
    "prefetch 1, two sharers, up to 192 tokens a tile": {"prefetch": 1, "tokens": 192, "sharers": 2, "gran": 128},
    "prefetch 1, rows cut at 128 and tokens cost nothing": {"prefetch": 1, "gran": 128, "token_cost": 0},
    "prefetch 1, rows cut at 32": {"prefetch": 1, "gran": 32, "token_cost": 100, "sharers": 1},
    "prefetch 1, without the copies of tokens": {"prefetch": 1, "without": "tokens"},
    "prefetch 1, without stores": {"prefetch": 1, "without": "stores"},
    "weights do not wait, prefetch 0, up to 128 tokens a tile": {
        "prefetch": 0,
        "tokens": 128,
        "without": "wait for weights",
    },
}
ENTRIES = {mode: entries for mode, (entries, _) in MODES.items()} | VARIANTS
MODELLED = {
    0: ["plain launches", SUBMITTED],
    1: ["plain launches", SUBMITTED],
    2: [*MODES, "prefetch 6", "prefetch 1, up to 128 tokens a tile"],
    3: [*MODES, "prefetch 2", "prefetch 6"],
}
ONE_AS_F32, ONE_AS_F16 = 0x3F800000, 0x3C00
MORE = "us with as many bytes into the SMs as the submission"  # of the loads-only kernel
SHARED = 227 << 10  # bytes that a CTA may have
TENSORS = "a", "b", "c", "sfa", "sfb"
FAKE = 1 << 40  # address of the first tensor in compiled parameters; the others follow every FAKE bytes


def tensor_bytes(case: int) -> list[int]:
    """Bytes of the tensors in the order of the groups and TENSORS."""
    ms, n, k = CASES[case]
    scales = [-(-rows // 128) * 128 * k // 16 for rows in (n, *ms)]
    return [x for m, sfa in zip(ms, scales[1:]) for x in (m * k // 2, n * k // 2, 2 * m * n, sfa, scales[0])]


def arguments(launch: dict, addresses: list[int]) -> list[bytes]:
    """The kernel arguments of a launch with its tensors at these addresses, in the order of the groups and TENSORS."""
    params = bytearray(base64.b64decode(launch["params"]))
    for offset, tensor in launch["moves"]:
        params[offset : offset + 8] = addresses[tensor].to_bytes(8, "little")
    return [bytes(params[offset : offset + size]) for offset, size in launch["parameters"]]


# ------------------------------------------------------------------------------------------------ here: with CuTe DSL


def compile_all(folder: Path) -> None:
    """Writes launches.json and cubins: every mode and variant of every case."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256((ROOT / "submission.py").read_bytes()).hexdigest()
    # A process for each case, since CuTe DSL must be prepared before it is imported
    with multiprocessing.get_context("spawn").Pool(min(len(CASES), os.cpu_count()), maxtasksperchild=1) as pool:
        launches = pool.starmap(compile_case, [(folder, case) for case in range(len(CASES))], chunksize=1)
    (folder / "launches.json").write_text(json.dumps({"submission.py": digest, "launches": sum(launches, [])}))


def compile_case(folder: Path, case: int) -> list[dict]:
    """Compiles the modes and variants of a case and writes their cubins; returns their launches."""
    prepare_dsl()
    modules, cubins, launches = {}, {}, []
    for name, entries in ENTRIES.items():
        entries = dict(entries)
        without = entries.pop("without", "")
        if without not in modules:
            modules[without] = load_submission(without=without)
        s = modules[without]
        sizes, config = scaled(s, case, **entries)
        launch = compile_launch(s, sizes, config)
        cubin = cubins.setdefault(launch.pop("ptx"), (f"{case}-{len(cubins)}.cubin", launch["cubin"]))
        (folder / cubin[0]).write_bytes(cubin[1])
        launch |= {"case": case, "name": name, "config": dataclasses.asdict(config), "without": without}
        arrive, read = zip(*bytes_into_ctas(s, sizes, config))
        loaded = {"bytes into SMs": sum(arrive) * CTAS, "bytes from L2": sum(read) * CTAS}
        loaded["bytes into the busiest SM"] = max(arrive)
        launches.append(launch | {"cubin": cubin[0]} | ({} if without == "tokens" else loaded))
    return launches


def prepare_dsl() -> None:
    """Lets CuTe DSL compile for sm_90a, keep PTX and cubin and launch on the emulator. Call before it is imported."""
    from emulated_gpu.serve.cute import cute_dsl

    assert "cutlass" not in sys.modules
    cute_dsl.choose("h200")
    cute_dsl.configure()
    os.environ |= {"CUTE_DSL_ARCH": "sm_90a", "CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_KEEP_CUBIN": "1"}
    cute_dsl.install()


def scaled(s, case: int, **entries):
    """Sizes of a case's groups, and its Config with as many CTAs as the card runs at once and other `entries`."""
    ms, n, k = CASES[case]
    of_case = dataclasses.asdict(s.CONFIG_MAP[ms, n, k][0]) | SCALED.get(case, {}) | entries
    sms = min(of_case["sms"], FIT[CTAS * of_case["sharers"]])
    return [(m, n, k) for m in ms], s.Config(**of_case | {"sms": sms})


def compile_launch(s, sizes: list[tuple[int, int, int]], config) -> dict:
    """A launch of the submission's kernel under `config`, as its own host code makes it, with PTX and cubin.

    The tensors have addresses FAKE, 2 * FAKE, .. in the order of the groups and TENSORS: "moves" says where in the
    parameters they stand, and for which tensor.
    """
    from emulated_gpu.device import DEVICE

    made, caught = s.Launch(s.GroupGemm, sizes, config), []
    DEVICE.launch, launch = lambda *args, **options: caught.append((args, options)), DEVICE.launch
    try:
        made([(1 + i) * FAKE for i in range(5 * len(sizes))])
    finally:
        DEVICE.launch = launch
    ((module, kernel, grid, block, params), options) = caught[0]
    words = memoryview(params).cast("Q")
    moves = [(8 * i, w // FAKE - 1) for i, w in enumerate(words) if w % FAKE == 0 and 0 < w <= 5 * len(sizes) * FAKE]
    artifacts = s.compiled(s.GroupGemm, 1 << (len(sizes) - 1).bit_length(), config).artifacts
    return {
        "kernel": kernel, "grid": grid[0], "block": block[0], "cluster": options["cluster"][0],
        "shared": options["dynamic_shared"], "pdl": options["pdl"],
        "params": base64.b64encode(params).decode(), "moves": moves,
        "parameters": [(p.offset, p.size) for p in module.program(kernel).kernel.params],
        "ptx": artifacts.PTX, "cubin": artifacts.CUBIN,
    }  # fmt: skip


def load_module(path: Path):
    """The file as a module of its own, under the file's name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load_submission(path: Path = ROOT / "submission.py", without: str = ""):
    """submission.py as a module of its own whose PTX layer is that of an H200.

    Two lines of its source change: the consumer warp runs in both CTAs of a pair, and a free stage awaits both.
    `without` "tokens" the kernel leaves out the copies of A and SFA, without "stores" those of C, to measure what they
    cost; without "wait for weights" the weight warp loads before the launch before has ended, which is right only if
    that launch does not write B and SFB.
    """
    source = path.read_text()
    edits = [
        ("if rank == 0:", "if rank >= 0:"),
        ("header + EMPTY + 8 * i, config.pairs)", "header + EMPTY + 8 * i, config.cluster)"),
    ]
    if without == "wait for weights":
        edits.append(("const_expr(self.config.pdl):  # as late", "const_expr(is_last):  # as late"))
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    folder = Path(tempfile.mkdtemp(prefix="h200-loads-"))  # CuTe DSL reads the file again when it compiles
    (folder / "submission_h200.py").write_text(source)
    module = load_module(folder / "submission_h200.py")
    replace_ptx(module)
    if without == "stores":
        module.tma_store = lambda *_: None
    if without == "tokens":
        boxes = module.GroupGemm.token_boxes
        module.GroupGemm.token_boxes = lambda *args: [box._replace(condition=module.Int32(0)) for box in boxes(*args)]
    return module


def replace_ptx(s) -> None:
    """Replaces what an H200 does not have in the PTX layer of a submission module."""
    cute, Int32 = s.cute, s.Int32
    ptx, load, map_shared, chosen = s.ptx, s.tma_load, s.map_shared, s.select
    init, expect, arrive = s.mbarrier_init, s.mbarrier_expect, s.mbarrier_arrive
    prepare, address_of = s.GroupGemm.__init__, s.GroupGemm.tensormap

    def __init__(self, groups: int, config):
        prepare(self, groups, config)
        s.of_kernel = config  # for what is compiled next

    def tensormap(self, params, operand: int, group):
        address = address_of(self, params, operand, group)
        address.of_fp4 = operand < self.scales_operand
        return address

    def select(condition, x, y):
        address = chosen(condition, x, y)
        if hasattr(x, "of_fp4"):  # of two tensormaps
            assert x.of_fp4 == y.of_fp4
            address.of_fp4 = x.of_fp4
        return address

    def fp4_tensormap(address, rows, k, box_rows: int):
        pointer = cute.make_ptr(s.cutlass.Uint8, address, cute.AddressSpace.gmem, assumed_align=16)
        layout = cute.make_layout((rows, k // 2), stride=(cute.assume(k // 2, 16), 1))
        tensor, box = cute.make_tensor(pointer, layout), (box_rows, s.TILE_K // 2)
        atom = s.tcgen05.make_smem_layout_atom(s.tcgen05.SmemLayoutAtomKind.K_SW128, s.cutlass.Uint8)
        op = s.cpasync.CopyBulkTensorTileG2SOp(s.tcgen05.CtaGroup.ONE)
        return s.cpasync.make_tiled_tma_atom(op, tensor, cute.tile_to_shape(atom, box, (0, 1)), box)[0]

    def dual_fp4_tensormap(low, high, rows, k, box_rows: int):
        k, distance, box = cute.assume(k // 2, 16), cute.assume(high - low, 16), (s.TILE_K // 2, 16, 2, box_rows // 32)
        atom = s.tcgen05.make_smem_layout_atom(s.tcgen05.SmemLayoutAtomKind.K_SW128, s.cutlass.Uint8)
        layout = cute.tile_to_shape(atom, (box_rows, s.TILE_K // 2), (0, 1))
        layout = cute.composition(layout, cute.make_layout(box, stride=(box_rows, 1, 16, 32)))
        shape, strides = (k, 32, 2, rows // 32), (1, k, distance, k * 32)
        pointer = cute.make_ptr(s.cutlass.Uint8, low, cute.AddressSpace.gmem, assumed_align=16)
        tensor = cute.make_tensor(pointer, cute.make_layout(shape, stride=strides))
        op = s.cpasync.CopyBulkTensorTileG2SOp(s.tcgen05.CtaGroup.ONE)
        return s.cpasync.make_tiled_tma_atom(op, tensor, layout, box)[0]

    def tma_load(to, tensormap, at: tuple, *rest) -> None:
        load(to, tensormap, (Int32(at[0]) >> 1, *at[1:]) if tensormap.of_fp4 else at, *rest)

    def arrive_at(bar, mask) -> None:
        """Arrives at the barriers of these CTAs of the cluster."""
        for rank in range(s.of_kernel.cluster):
            at = map_shared(bar, rank)
            arrive(at, condition=Int32(mask) >> rank & 1)

    def of_own_cta(address, rank):
        """The barriers of the own CTA are the pair's; `mbarrier_arrive` still has to know the CTA."""
        address.rank = rank
        return address

    def mbarrier_arrive(bar) -> None:
        block, _, _ = cute.arch.block_idx()
        pair = Int32(3) << (block & (s.of_kernel.cluster - CTAS))
        arrive_at(bar, Int32(1) << bar.rank if hasattr(bar, "rank") else pair)

    def nothing(*_, **__):
        pass

    s.GroupGemm.__init__, s.GroupGemm.tensormap, s.select = __init__, tensormap, select
    s.fp4_tensormap, s.dual_fp4_tensormap, s.tma_load = fp4_tensormap, dual_fp4_tensormap, tma_load
    s.ptx = lambda text, *args, **options: ptx(text.replace(".cta_group::2", ""), *args, **options)
    # A count of 1 is the commit's, which now comes from each CTA of a pair
    s.mbarrier_init = lambda bar, count: init(bar, CTAS if count == 1 else count)
    s.mbarrier_expect = lambda bar, size, condition: expect(bar, size // CTAS, condition=Int32(1))
    s.mbarrier_arrive, s.map_shared, s.mma_commit = mbarrier_arrive, of_own_cta, arrive_at
    s.tmem_alloc = lambda to: s.ptx("st.shared.b32 [$0], 0;", "r", to)
    s.tmem_load = lambda tmem: [Int32(ONE_AS_F32)] * 16
    s.tmem_relinquish = s.tmem_dealloc = s.mma = s.tmem_load_wait = nothing
    s.tcgen05_fence_before = s.tcgen05_fence_after = nothing


def bytes_into_ctas(s, sizes, config) -> list[tuple[int, int]]:
    """Bytes into shared memory, and bytes read from L2 for them, of the first CTA of each MMA in turn."""
    if config.waves > 1:
        sizes = sorted(sizes, reverse=True)  # as Plan orders them
    launch = s.Launch(s.GroupGemm, sizes, config)
    gemm = s.GroupGemm(1 << (len(sizes) - 1).bit_length(), config)
    clusters = launch.words[gemm.scalars] // config.cluster
    of_cluster, totals = gemm.of_cluster, []
    for cluster in range(clusters):
        table = launch.words[gemm.clusters + cluster * of_cluster + 1 : gemm.clusters + (cluster + 1) * of_cluster]
        for sharer in range(config.sharers):
            arrive, read = 0, 0
            for at, end in zip(table[::2], table[1::2]):
                while at < end:
                    g, token, row = s.Position.unpack(at)
                    m, n, k = sizes[g]
                    width = s.token_tile(m, config)
                    limit = end & 0xFFFFFF if at >> 24 == end >> 24 else gemm.rows_per_cta(n)
                    first, rows = token + sharer * width, min(limit - row, 128 - row % 128)
                    tokens = max(s.round_up(min(width, m - first), 32), 32)
                    stages, row_bytes = -(-k // s.TILE_K), s.TILE_K // 2
                    weights = s.round_up(rows, config.gran) * row_bytes + s.SF_BYTES
                    scales = 1 + (first % 128 + tokens > 128)
                    of_tokens = s.round_up(tokens // CTAS, config.token_box) * row_bytes + scales * s.SF_BYTES
                    arrive += stages * (weights + of_tokens)
                    read += stages * (weights // config.sharers + of_tokens)
                    token += width * config.sharers
                    if row + rows < limit:
                        at += rows
                    else:
                        at = s.Position(*((g, token, 0) if token < m else (g + 1, 0, 0))).pack()
            totals.append((arrive, read))
    return totals


# --------------------------------------------------------------------------------------------------- there: on the H200


def measure_folder(folder: Path, repeats: int = 2) -> None:
    """Checks and times the folder's launches and the loads-only kernels of their cases and modes, `repeats` times."""
    compiled = json.loads((folder / "launches.json").read_text())
    launches, points = compiled["launches"], {p.name: p for p in POINTS}
    alone, more = {}, {}
    for x in launches:
        if x["name"] in MODES:
            alone[x["case"], x["name"]] = point = points[MODES[x["name"]][1].format(x["case"])]
            more[x["case"], x["name"]] = with_bytes(point, x["case"], x["bytes into SMs"])
    input_bytes, output_bytes = (max(sizes) for sizes in zip(*(places(case)[1] for case, _ in alone)))
    bench = Bench([*alone.values(), *more.values()], INPUTS * input_bytes)
    gpu, smi, kernels, timed = bench.gpu, [nvidia_smi()], {}, {}
    outputs = gpu.allocate(INPUTS * output_bytes)
    for x in launches:
        if x["cubin"] not in kernels:
            kernels[x["cubin"]] = gpu.kernel((folder / x["cubin"]).read_bytes(), x["kernel"], SHARED)
        prepared = []
        for i in range(INPUTS):
            starts = bench.sources + i * input_bytes, outputs + i * output_bytes
            args = arguments(x, [starts[which] + offset for which, offset in places(x["case"])[0]])
            shape = x["grid"], x["block"], args, x["cluster"], x["shared"], x["pdl"]
            prepared.append(gpu.launch(kernels[x["cubin"]], *shape))
        if x["without"] != "stores":
            check(gpu, prepared[0], outputs, output_bytes, x["case"])
        timed[x["case"], x["name"], "us"] = prepared
        timed[x["case"], x["name"], "us, inputs in L2"] = prepared[:1] * INPUTS
    timed |= {(*key, "alone"): bench.launches(point) for key, point in alone.items()}
    timed |= {(*key, MORE): bench.launches(point) for key, point in more.items()}
    bench.timer.rounds(next(iter(timed.values())), 100)  # the clocks rise
    us = bench.timer.medians(timed, repeats)
    smi.append(nvidia_smi())
    kept = "case", "name", "config", "grid", "shared", "bytes into SMs", "bytes from L2", "bytes into the busiest SM"
    record = {
        "machine": gpu.describe() | {"nvidia-smi, before and after": smi},
        "date": datetime.date.today().isoformat(),
        "repeats": bench.timer.ROUNDS,
        "sha256 of submission.py": compiled["submission.py"],
        "loads only": [
            {"case": case, "mode": mode, "point": point.name, "us": us[case, mode, "alone"], MORE: us[case, mode, MORE]}
            | point.counts
            for (case, mode), point in alone.items()
        ],
        "submission": [
            {key: x[key] for key in kept if key in x}
            | {key: us[x["case"], x["name"], key] for key in ("us", "us, inputs in L2")}
            for x in launches
        ],
    }
    entries = [json.dumps(key) + ": " + lines(value) for key, value in record.items()]
    (folder / RESULTS.name).write_text("{\n" + ",\n".join(entries) + "\n}\n")
    print(table(record))


def places(case: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Where a case's tensors lie: (0 for an input, 1 for an output; offset among those), and bytes of each of both."""
    at, ends = [], [0, 0]
    for t, nbytes in enumerate(tensor_bytes(case)):
        which = int(TENSORS[t % 5] == "c")
        at.append((which, ends[which]))
        ends[which] += -(-nbytes // 1024) * 1024
    return at, ends


def check(gpu, launch, output: int, nbytes: int, case: int) -> None:
    """Raises RuntimeError unless every element of C becomes 1 and nothing beside it is written.

    That the launch ends means that all bytes have come.
    """
    expected = np.full(nbytes, 0xCD, np.uint8)
    for (which, offset), size in zip(places(case)[0], tensor_bytes(case)):
        if which:
            expected[offset : offset + size].view(np.uint16)[:] = ONE_AS_F16
    gpu.fill(output, 0xCD, nbytes)
    launch()
    if not np.array_equal(gpu.read(output, nbytes), expected):
        raise RuntimeError("C is not all ones, or what follows C was written")


def lines(value) -> str:
    """A value as JSON, a list with one line for each entry."""
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value)


# --------------------------------------------------------------------------------------------------------- timing model


def modelled(s, launch: dict, case: int, same: bool) -> float:
    """Microseconds per call that the timing model predicts for an H200, each on its own input or all on the `same`.

    The two events are included, as in what is measured; with the same input one call more is.
    """
    import torch

    import emulated_gpu
    from emulated_gpu.model.steady import Steady

    launches = []
    steady = None if same else Steady(launches)
    with emulated_gpu.timing("h200", enough=steady) as timed:
        tensors = []
        for _ in range(INPUTS // 2 if same else INPUTS):
            if not tensors or not same:
                empty = [torch.empty(nbytes, dtype=torch.uint8) for nbytes in tensor_bytes(case)]
                tensors.append(emulated_gpu.device_tensors(empty, copy=False))
            args = arguments(launch, [t.data_ptr() for t in tensors[-1]])
            shape = {key: launch[key] for key in ("cluster", "shared", "pdl")}
            emulated_gpu.launch(launch["ptx"], launch["kernel"], launch["grid"], launch["block"], args, **shape)
            launches.append(len(launches) + 1)
    if same:
        return (timed.ends_us[-1] - timed.ends_us[2]) / (len(timed.ends_us) - 3)  # the first bring the data
    profile = timed.run.profile
    return (profile.us(steady.total()) + profile["launch"]["events_ns"] / 1e3) / INPUTS


def model() -> None:
    """Prints the model's predictions for the launches of MODELLED beside what was measured."""
    measured = {(x["case"], x["name"]): x for x in json.loads(RESULTS.read_text())["submission"]}
    prepare_dsl()
    print("| | measured, us | model | inputs in L2 | model |", "|---|---|---|---|---|", sep="\n")
    for case, names in MODELLED.items():
        for name in names:
            entries = dict(ENTRIES[name])
            s = load_submission(without=entries.pop("without", ""))
            launch, cells = compile_launch(s, *scaled(s, case, **entries)), []
            for key, same in (("us", False), ("us, inputs in L2", True)):
                us, predicted = min(measured[case, name][key]), modelled(s, launch, case, same)
                cells += [f"{us:.2f}", f"{predicted:.2f} ({100 * (predicted / us - 1):+.0f} %)"]
            print(f"| case {case}, {name} | " + " | ".join(cells) + " |", flush=True)


# -------------------------------------------------------------------------------------------------------------- results


def table(record: dict) -> str:
    """The record in Markdown: us per call and, in brackets, the throughput in percent of the loads-only kernel's."""
    alone = {(x["mode"], x["case"]): x for x in record["loads only"]}
    of_name = {}
    for x in record["submission"]:
        of_name.setdefault(x["name"], {})[x["case"]] = x
    cases = sorted(of_name[SUBMITTED])
    rows = [["", *(f"case {case}" for case in cases)], ["---"] * (1 + len(cases))]

    def row(name, cell):
        rows.append([name, *map(cell, cases)])

    for name, of_case in of_name.items():
        mode = name if name in MODES else EARLY if name.startswith("weights") else SUBMITTED
        only = {case: min(alone[mode, case]["us"]) for case in cases}
        best = {case: min(of_case[case]["us"]) for case in cases}
        if name in MODES:
            row(f"{name}: loads only", lambda c, only=only: f"{only[c]:.2f}")
            row(f"{name}: loads only, as many bytes into the SMs", lambda c, of=mode: f"{min(alone[of, c][MORE]):.2f}")
        row(f"{name}: submission", lambda c, only=only, best=best: f"{best[c]:.2f} ({100 * only[c] / best[c]:.0f} %)")
        if name in MODES:
            row(f"{name}: submission, inputs in L2", lambda c, of=of_case: f"{min(of[c]['us, inputs in L2']):.2f}")
    submitted = of_name[SUBMITTED]
    row("MB loaded once", lambda c: f"{alone[SUBMITTED, c]['unique bytes'] / 1e6:.1f}")
    row("MB into the SMs: submission", lambda c: f"{submitted[c]['bytes into SMs'] / 1e6:.1f}")
    row("KB into the busiest SM: submission", lambda c: f"{submitted[c]['bytes into the busiest SM'] / 1e3:.0f}")
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def main() -> None:
    commands = (parser := command.parser(__doc__)).add_subparsers(dest="what", required=True)
    for name in ("compile", "run"):
        commands.add_parser(name).add_argument("folder", type=Path)
    commands.add_parser("table")
    commands.add_parser("model")
    options = parser.parse_args()
    if options.what == "compile":
        compile_all(options.folder)
    elif options.what == "run":
        if not (options.folder / "launches.json").exists():
            parser.error(f"{options.folder} has no launches.json: `compile` writes it")
        with command.on_gpu():
            measure_folder(options.folder)
    elif options.what == "model":
        model()
    else:
        print(table(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
