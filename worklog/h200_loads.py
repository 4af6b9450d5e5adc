"""How fast the submission's load side is on a real NVIDIA H200 (sm_90a), beside a kernel that only loads.

    python -m worklog.h200_loads compile FOLDER    where CuTe DSL is: writes kernels and launch parameters
    python3 worklog/h200_loads.py run FOLDER       where the H200 is, with NumPy: writes FOLDER/h200_loads.json
    python3 worklog/h200_loads.py table            prints worklog/h200_loads.json as Markdown
    python -m worklog.h200_loads model             what the timing model (profile h200) says of cases 2 and 3, beside it

The kernel is compiled from submission.py: its schedule, words, tensormaps, boxes, ring, barriers, PDL, and epilogue.
Only these functions of its PTX layer differ, because an H200 has no tcgen05 and its driver refuses FP4 tensormaps:
  * mma, tmem_copy_scales, fences: nothing; mma_commit arrives at once
  * tmem_load: constants, so that the epilogue stores as many bytes the same way: every element of C becomes 1
  * fp4_tensormap: u8 of the same bytes, at half the x
  * tma_load: without .cta_group, a copy signals its own CTA. Each CTA of a pair awaits its own bytes and has a consumer
    warp; a stage is free when those of all CTAs of the cluster have passed.
The benchmark cases keep their sizes; the schedule is that of 132 SMs, or of the 30 clusters of 4 CTAs that fit them.
Timed as tests/timing/README.md says ("cold 15"): an L2-flushing fill, then 15 launches on 15 inputs between two events,
divided by 15; median of 20. "Inputs in L2": all 15 on the same input, whose bytes then need not come from DRAM (as far
as 50 MB hold them).
The loads-only kernel (tests/timing/kernels.py, `loads`) is measured in the same run: one CTA per SM copies an equal
share of the case's bytes, each byte once, to a ring, and writes the case's C bytes.
"""

import base64
import ctypes
import dataclasses
import hashlib
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_suffix(".json")
SMS = 132
FIT = {1: 132, 2: 132, 4: 120}  # CTAs that run at once in clusters of so many
SCALED = {2: {"tokens": 160}}  # 36 clusters of 4 would take two rounds, 24 take one
CASES = {  # (M of each group), N, K
    0: ((80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168),
    1: ((40, 76, 168, 72, 164, 148, 196, 160), 7168, 2048),
    2: ((192, 320), 3072, 4096),
    3: ((128, 384), 4096, 1536),
}
MODES = {  # PDL mode: (entries of the Config, the loads-only kernel of that mode)
    "plain launches": ({"pdl": False}, "loads/bulk/case {}/plain/6x32K"),
    "PDL, wait first": ({"prefetch": 0}, "loads/bulk/case {}/wait/6x32K"),
    "PDL, L2 prefetch before the wait": ({}, "loads/bulk/case {}/wait/6x32K/prefetch 6"),
    "PDL, weights do not wait": ({"early_weights": True}, "loads/bulk/case {}/early/6x32K"),
}
FIRST, NORMAL, LAST = "evict_first", "evict_normal", "evict_last"
VARIANTS = {  # of the submitted mode: entries of the Config, or what the kernel leaves out ("without")
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
    "prefetch 1, two CTAs per SM": {
        "prefetch": 1,
        "ctas_per_sm": 2,
        "epilogue_warps": 4,
        "store_boxes": 1,
        "tokens": 128,
    },
    "prefetch 1, one CTA per MMA": {"prefetch": 1, "ctas": 1, "sharers": 1},
    "prefetch 1, stores from registers": {"prefetch": 1, "epilogue": "direct"},
    "prefetch 1, without the copies of tokens": {"prefetch": 1, "without": "tokens"},
    "prefetch 1, without stores": {"prefetch": 1, "without": "stores"},
    "weights do not wait, prefetch 0, up to 128 tokens a tile": {"early_weights": True, "prefetch": 0, "tokens": 128},
}
ENTRIES = {mode: entries for mode, (entries, _) in MODES.items()} | VARIANTS
ONE_AS_F32, ONE_AS_F16 = 0x3F800000, 0x3C00
TENSORS = "a", "b", "c", "sfa", "sfb"
FAKE = 1 << 40  # address of the first tensor in compiled parameters; the others follow every FAKE bytes


# ------------------------------------------------------------------------------------------------ here: with CuTe DSL


def load_submission(path: Path = ROOT / "submission.py", without: str = ""):
    """submission.py as a module of its own whose PTX layer is that of an H200.

    Two lines of its source change: the consumer warp runs in both CTAs of a pair, and a free stage awaits both.
    `without` "tokens" the kernel leaves out the copies of A and SFA, without "stores" those of C, to measure what they
    cost.
    """
    source = path.read_text()
    for of_leaders, of_all in (
        ("if rank == 0:", "if rank >= 0:"),
        ("mbarrier_init(empty + 8 * i, config.sharers)", "mbarrier_init(empty + 8 * i, config.cluster)"),
    ):
        assert source.count(of_leaders) == 1
        source = source.replace(of_leaders, of_all)
    folder = Path(tempfile.mkdtemp(prefix="h200-loads-"))  # CuTe DSL reads the file again when it compiles
    (folder / "submission_h200.py").write_text(source)
    spec = importlib.util.spec_from_file_location("submission_h200", folder / "submission_h200.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    replace_ptx(module)
    if without == "stores":
        module.tma_store = lambda *_: None
    if without == "tokens":
        boxes = module.GroupGemm.token_boxes
        module.GroupGemm.token_boxes = lambda *args: [box._replace(condition=module.Int32(0)) for box in boxes(*args)]
    compiled = module.compiled  # what only the host reads needs no kernel of its own
    module.compiled = lambda groups, config, dual=False: compiled(
        groups, dataclasses.replace(config, tokens=32, token_cost=0), dual
    )
    return module


def replace_ptx(s) -> None:
    """Replace what an H200 does not have in the PTX layer of a submission module."""
    cute, Int32 = s.cute, s.Int32

    def nothing(*_):
        pass

    def fp4_tensormap(address, rows, k, box_rows: int):
        pointer = cute.make_ptr(s.cutlass.Uint8, address, cute.AddressSpace.gmem, assumed_align=16)
        layout = cute.make_layout((rows, k // 2), stride=(cute.assume(k // 2, 16), 1))
        tensor, box = cute.make_tensor(pointer, layout), (box_rows, s.TILE_K // 2)
        atom = s.tcgen05.make_smem_layout_atom(s.tcgen05.SmemLayoutAtomKind.K_SW128, s.cutlass.Uint8)
        op = s.cpasync.CopyBulkTensorTileG2SOp(s.tcgen05.CtaGroup.ONE)
        return s.cpasync.make_tiled_tma_atom(op, tensor, cute.tile_to_shape(atom, box, (0, 1)), box)[0]

    class GroupGemm(s.GroupGemm):
        def __init__(self, groups: int, config, dual: bool = False):
            super().__init__(groups, config, dual)
            s.of_kernel = config  # for what is compiled next

        def tensormap(self, params, operand: int, group):
            address = super().tensormap(params, operand, group)
            address.of_fp4 = operand < self.scales_operand
            return address

    def place(tensormap, at: tuple) -> tuple:
        return (Int32(at[0]) >> 1, *at[1:]) if tensormap.of_fp4 else at

    def without_cta_group(text: str, *args, **options):
        return ptx(text.replace(".cta_group::1", "").replace(".cta_group::2", ""), *args, **options)

    def tma_load(ctas: int, to, tensormap, at: tuple, *rest) -> None:
        load(ctas, to, tensormap, place(tensormap, at), *rest)

    def mbarrier_init(bar, count: int) -> None:
        init(bar, s.of_kernel.ctas if count == 1 else count)  # 1: the commit, which now comes from each CTA of a pair

    def mbarrier_expect(bar, size, leader) -> None:
        expect(bar, size >> (s.of_kernel.ctas - 1), Int32(1))

    def arrive_at(bar, mask) -> None:
        """At the barriers of these CTAs of the cluster."""
        for rank in range(s.of_kernel.cluster):
            at = map_shared(bar, rank) if s.of_kernel.cluster > 1 else bar
            s.ptx_if(Int32(mask) >> rank & 1, "mbarrier.arrive.shared::cluster.b64 _, [$0];", "r", at)

    def mbarrier_arrive(bar) -> None:
        block, _, _ = cute.arch.block_idx()
        first = block & (s.of_kernel.cluster - s.of_kernel.ctas)  # of the pair
        arrive_at(bar, Int32((1 << s.of_kernel.ctas) - 1) << first)

    ptx, load, init, expect = s.ptx, s.tma_load, s.mbarrier_init, s.mbarrier_expect
    map_shared = s.map_shared
    s.GroupGemm, s.fp4_tensormap = GroupGemm, fp4_tensormap
    s.ptx, s.tma_load = without_cta_group, tma_load
    s.mbarrier_init, s.mbarrier_expect, s.mbarrier_arrive = mbarrier_init, mbarrier_expect, mbarrier_arrive
    s.map_shared = lambda address, rank: address  # the barriers of the own CTA
    s.mbarrier_arrive_at = lambda bar, rank: arrive_at(bar, Int32(1) << rank)
    s.mma_commit = lambda ctas, bar, mask: arrive_at(bar, mask if ctas == 2 else 1)
    s.tmem_alloc = lambda ctas, to, columns: s.ptx("st.shared.b32 [$0], 0;", "r", to)
    s.tmem_load = lambda shape, count, tmem: [Int32(ONE_AS_F32)] * count
    s.tmem_dealloc = s.tmem_copy_scales = s.mma = s.tmem_load_wait = s.tcgen05_fence = nothing


def prepare_dsl() -> None:
    """Let CuTe DSL compile for sm_90a and keep PTX and cubin, and catch its launches. Call before it is imported."""
    from emulator import host

    assert "cutlass" not in sys.modules
    host.configure()
    os.environ |= {"CUTE_DSL_ARCH": "sm_90a", "CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_KEEP_CUBIN": "1"}
    host.install()


def compile_launch(s, sizes: list[tuple[int, int, int]], config) -> dict:
    """One launch of the submission's kernel under `config`, as its own host code makes it, and the kernel.

    The tensors have addresses FAKE, 2 * FAKE, .. in the order of the groups and TENSORS: "moves" says where in the
    parameters they stand, and for which tensor.
    """
    from emulator.device import DEVICE

    made, caught = s.Launch(sizes, config), []
    DEVICE.launch, launch = lambda *args, **options: caught.append((args, options)), DEVICE.launch
    try:
        made.words[: 5 * len(sizes)] = [(1 + i) * FAKE for i in range(5 * len(sizes))]
        made()
    finally:
        DEVICE.launch = launch
    ((module, kernel, grid, block, params), options) = caught[0]
    words = memoryview(params).cast("Q")
    moves = [(8 * i, w // FAKE - 1) for i, w in enumerate(words) if w % FAKE == 0 and 0 < w <= 5 * len(sizes) * FAKE]
    artifacts = s.compiled(1 << (len(sizes) - 1).bit_length(), config).artifacts
    return {
        "kernel": kernel, "grid": grid[0], "block": block[0], "cluster": options["cluster"][0],
        "shared": options["dynamic_shared"], "pdl": options["pdl"],
        "params": base64.b64encode(params).decode(), "moves": moves,
        "parameters": [(p.offset, p.size) for p in module.program(kernel).kernel.params],
        "ptx": artifacts.PTX, "cubin": artifacts.CUBIN,
    }  # fmt: skip


def scaled(s, case: int, **entries):
    """(sizes of the groups, Config of a case with as many CTAs as the card runs at once and other `entries`)."""
    ms, n, k = CASES[case]
    of_case = dataclasses.asdict(s.CONFIG_MAP[ms, n, k]) | SCALED.get(case, {}) | entries
    return [(m, n, k) for m in ms], s.Config(**of_case | {"sms": FIT[of_case["ctas"] * of_case["sharers"]]})


def bytes_into_ctas(s, sizes, config) -> list[tuple[int, int]]:
    """(bytes into shared memory, bytes read from L2 for them) of the first CTA of each MMA in turn."""
    launch = s.Launch(sizes, config)
    gemm = s.GroupGemm(1 << (len(sizes) - 1).bit_length(), config)
    clusters = launch.words[gemm.scalars] // config.cluster
    table, totals = launch.words[gemm.starts : gemm.starts + 2 * clusters], []
    for start, end in zip(table[::2], table[1::2]):
        for sharer in range(config.sharers):
            at, arrive, read = start, 0, 0
            while at < end:
                g, token, row = at >> 48, at >> 24 & 0xFFFFFF, at & 0xFFFFFF
                m, n, k = sizes[g]
                width = s.token_tile(m, config)
                limit = end & 0xFFFFFF if at >> 24 == end >> 24 else s.rows_per_cta(n, config.ctas)
                first, rows = token + sharer * width, min(limit - row, 128 - row % 128)
                tokens = max(s.round_up(min(width, m - first), 32), 32)
                stages, row_bytes = -(-k // s.TILE_K), s.TILE_K // 2
                weights = s.round_up(rows, config.gran) * row_bytes + s.SF_BYTES
                scales = 1 + (first % 128 + tokens > 128)
                of_tokens = s.round_up(tokens // config.ctas, config.token_box) * row_bytes + scales * s.SF_BYTES
                arrive += stages * (weights + of_tokens)
                read += stages * (weights // config.sharers + of_tokens)
                token += width * config.sharers
                if row + rows < limit:
                    at += rows
                else:
                    at = s.pack_position(g, token, 0) if token < m else s.pack_position(g + 1, 0, 0)
            totals.append((arrive, read))
    return totals


def params_at(launch: dict, addresses: list[int]) -> bytes:
    """The kernel parameters of a launch with its tensors at these addresses, in the order of the groups and TENSORS."""
    params = bytearray(base64.b64decode(launch["params"]))
    for offset, tensor in launch["moves"]:
        params[offset : offset + 8] = addresses[tensor].to_bytes(8, "little")
    return bytes(params)


def compile_case(folder: Path, case: int) -> list[dict]:
    """Compile the modes and variants of a case; writes its cubins."""
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
        loaded = bytes_into_ctas(s, sizes, config)
        arrive, read = zip(*loaded)
        loaded = {"bytes into SMs": sum(arrive) * config.ctas, "bytes from L2": sum(read) * config.ctas}
        loaded["bytes into the busiest SM"] = max(arrive)
        launches.append(launch | {"cubin": cubin[0]} | ({} if without == "tokens" else loaded))
    return launches


def compile_all(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256((ROOT / "submission.py").read_bytes()).hexdigest()
    # A process for each case, since CuTe DSL must be prepared before it is imported
    with multiprocessing.get_context("spawn").Pool(min(len(CASES), os.cpu_count()), maxtasksperchild=1) as pool:
        launches = sum(pool.starmap(compile_case, [(folder, case) for case in CASES], chunksize=1), [])
    (folder / "launches.json").write_text(json.dumps({"submission.py": digest, "launches": launches}))


# --------------------------------------------------------------------------------------------------- there: on the H200


def tensor_bytes(case: int) -> list[int]:
    """Bytes of the tensors in the order of the groups and TENSORS."""
    ms, n, k = CASES[case]
    scales = [-(-rows // 128) * 128 * k // 16 for rows in (n, *ms)]
    return [x for m, sfa in zip(ms, scales[1:]) for x in (m * k // 2, n * k // 2, 2 * m * n, sfa, scales[0])]


def as_many_bytes(point, case: int, nbytes: int):
    """The loads-only point with `nbytes` in all into its CTAs, so that some of them load the same bytes."""
    from timing.points import CASES as COUNTED
    from timing.points import Output, Source

    tile = -(-nbytes // SMS // 128) * 128
    unique = min(SMS, -(-COUNTED[case].load_bytes // tile))
    args = (Source(unique * tile), Output(SMS * point.args[6]), SMS, unique, tile, *point.args[5:])
    return dataclasses.replace(point, args=args)


class Prepared:
    """A launch on input and output `i`, ready to be queued."""

    def __init__(self, gpu, launch: dict, function, i: int):
        from golden.run_on_gpu import CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION, Attribute, LaunchConfig

        sizes, addresses = tensor_bytes(launch["case"]), []
        at = {False: gpu.sources + i * gpu.input_bytes, True: gpu.results + i * gpu.result_bytes}
        self.output = at[True]
        for t, nbytes in enumerate(sizes):
            is_output = TENSORS[t % 5] == "c"
            addresses.append(at[is_output])
            at[is_output] += -(-nbytes // 1024) * 1024
        assert at[False] <= gpu.sources + (i + 1) * gpu.input_bytes
        params = params_at(launch, addresses)
        self.params = ctypes.create_string_buffer(params, len(params))
        base = ctypes.addressof(self.params)
        self.arguments = (ctypes.c_void_p * len(launch["parameters"]))(*[base + o for o, _ in launch["parameters"]])
        attributes = [Attribute(CLUSTER_DIMENSION, 0, (ctypes.c_uint32 * 16)(launch["cluster"], 1, 1))]
        if launch["pdl"]:
            attributes.append(Attribute(PROGRAMMATIC_SERIALIZATION, 0, (ctypes.c_uint32 * 16)(1)))
        array = (Attribute * len(attributes))(*attributes)
        sizes = [(ctypes.c_uint * 3)(x, 1, 1) for x in (launch["grid"], launch["block"])]
        self.config = LaunchConfig(*sizes, launch["shared"], gpu.queue, array, len(attributes))
        self.prepared = ctypes.byref(self.config), function, self.arguments, None
        self.enqueue = gpu.cuda.cuLaunchKernelEx

    def __call__(self):
        if status := self.enqueue(*self.prepared):
            raise RuntimeError(f"cuLaunchKernelEx: error {status}")


def run(folder: Path, repeats: int = 2) -> None:
    """Check and measure every compiled launch and the loads-only kernels of its case and mode, `repeats` times."""
    sys.path.insert(0, str(ROOT / "tests"))
    import datetime

    import numpy as np
    from golden.run_on_gpu import MAX_DYNAMIC_SHARED
    from timing.points import INPUTS, POINTS, Source
    from timing.run_on_gpu import NOISE_BYTES, REPEATS, TimingGpu, nbytes_of, nvidia_smi

    gpu = TimingGpu()
    of_case = [[-(-x // 1024) * 1024 for x in tensor_bytes(case)] for case in CASES]
    gpu.input_bytes = max(sum(x for t, x in enumerate(sizes) if TENSORS[t % 5] != "c") for sizes in of_case)
    gpu.result_bytes = max(sum(sizes[2::5]) for sizes in of_case)
    # TimingGpu has filled its sources with noise, and more of it than the inputs of its own largest point
    assert INPUTS * gpu.input_bytes <= max(p.inputs * nbytes_of(p, Source) for p in POINTS) + NOISE_BYTES
    gpu.results = gpu.allocate(INPUTS * gpu.result_bytes)

    def timed(launches) -> float:
        for _ in range(5):  # the host may be late with the 15 launches
            try:
                return gpu.between_events(launches, "cold")
            except RuntimeError:
                gpu.sync()
        raise RuntimeError("the host is too slow to queue the launches")

    def median(launches) -> float:
        timed(launches)
        return round(float(np.median([timed(launches) for _ in range(REPEATS)])), 3)

    def check(prepared, case: int) -> None:
        """Every element of C is 1 and nothing beside it was written; that the launch ends means that all bytes came."""
        nbytes = gpu.result_bytes
        gpu.call("cuMemsetD8_v2", ctypes.c_uint64(prepared.output), ctypes.c_uint(0xCD), ctypes.c_size_t(nbytes))
        prepared()
        gpu.sync()
        after, at = gpu.read(prepared.output, nbytes), 0
        for size in tensor_bytes(case)[2::5]:
            if not (after[at : at + size].view(np.uint16) == ONE_AS_F16).all():
                raise RuntimeError("C was not written")
            padded = -(-size // 1024) * 1024
            if not (after[at + size : at + padded] == 0xCD).all():
                raise RuntimeError("what follows C was written")
            at += padded
        if not (after[at:] == 0xCD).all():
            raise RuntimeError("what follows C was written")

    points = {p.name: p for p in POINTS}
    compiled = json.loads((folder / "launches.json").read_text())
    launches = compiled["launches"]
    functions, smi = {}, [nvidia_smi()]
    for launch in launches:
        function = functions.setdefault(launch["cubin"], ctypes.c_void_p())
        if not function:
            module = ctypes.c_void_p()
            gpu.call("cuModuleLoadData", ctypes.byref(module), (folder / launch["cubin"]).read_bytes())
            gpu.call("cuModuleGetFunction", ctypes.byref(function), module, launch["kernel"].encode())
            gpu.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, 227 << 10)
        launch["prepared"] = [Prepared(gpu, launch, function, i) for i in range(INPUTS)]
        if launch["without"] != "stores":
            check(launch["prepared"][0], launch["case"])
    for _ in range(100):  # the clocks rise
        timed(launches[0]["prepared"])
    loads_only = {(case, mode): points[name.format(case)] for case in CASES for mode, (_, name) in MODES.items()}
    prepared = {key: gpu.launches(point, point.inputs) for key, point in loads_only.items()}
    loaded = {(x["case"], x["name"]): x["bytes into SMs"] for x in launches if x["name"] in MODES}
    more = {key: as_many_bytes(point, key[0], loaded[key]) for key, point in loads_only.items()}
    prepared |= {(*key, "more"): gpu.launches(point, point.inputs) for key, point in more.items()}
    alone = {key: [] for key in prepared}
    for launch in launches:
        launch["us"], launch["us, inputs in L2"] = [], []
    for _ in range(repeats):
        for key in prepared:
            alone[key].append(median(prepared[key]))
        for launch in launches:
            launch["us"].append(median(launch["prepared"]))
            launch["us, inputs in L2"].append(median(launch["prepared"][:1] * INPUTS))
    smi.append(nvidia_smi())
    record = {
        "machine": gpu.describe() | {"nvidia-smi, before and after": smi},
        "date": datetime.date.today().isoformat(),
        "repeats": REPEATS,
        "sha256 of submission.py": compiled["submission.py"],
        "loads only": [
            {"case": case, "mode": mode, "point": point.name, "us": alone[case, mode]}
            | {"us with as many bytes into the SMs as the submission": alone[case, mode, "more"]}
            | point.counts
            for (case, mode), point in loads_only.items()
        ],
        "submission": [
            {key: launch[key] for key in ("case", "name", "config", "grid", "shared", "us", "us, inputs in L2")}
            | {key: launch[key] for key in ("bytes into SMs", "bytes into the busiest SM") if key in launch}
            for launch in launches
        ],
    }
    entries = [json.dumps(key) + ": " + lines(value) for key, value in record.items()]
    (folder / RESULTS.name).write_text("{\n" + ",\n".join(entries) + "\n}\n")
    print(table(record))


# --------------------------------------------------------------------------------------------------------- timing model

MODELLED = {2: [*MODES, "prefetch 6", "prefetch 1, up to 128 tokens a tile"], 3: [*MODES, "prefetch 2", "prefetch 6"]}


def modelled(s, launch: dict, case: int, same: bool) -> float:
    """Microseconds per call that the timing model predicts for an H200: each on its own input, or all on the same."""
    import torch

    import emulator
    from evaluation.modelled import Steady
    from tests.timing.points import INPUTS

    launches = []
    steady = None if same else Steady(launches)
    with emulator.timing("h200", enough=steady) as timed:
        tensors = []
        for _ in range(INPUTS // 2 if same else INPUTS):
            if not tensors or not same:
                empty = [torch.empty(nbytes, dtype=torch.uint8) for nbytes in tensor_bytes(case)]
                tensors.append(emulator.device_tensors(empty, copy=False))
            params = params_at(launch, [t.data_ptr() for t in tensors[-1]])
            args = [params[offset : offset + size] for offset, size in launch["parameters"]]
            shape = {key: launch[key] for key in ("cluster", "shared", "pdl")}
            emulator.launch(launch["ptx"], launch["kernel"], launch["grid"], launch["block"], args, **shape)
            launches.append(len(launches) + 1)
    if same:
        return (timed.ends_us[-1] - timed.ends_us[2]) / (len(timed.ends_us) - 3)  # the first bring the data
    return timed.run.profile.us(steady.total()) / INPUTS


def model() -> None:
    """Print the model's predictions for the launches of MODELLED beside what was measured."""
    measured = {(x["case"], x["name"]): x for x in json.loads(RESULTS.read_text())["submission"]}
    prepare_dsl()
    s = load_submission()
    print("| | measured, us | model | inputs in L2 | model |", "|---|---|---|---|---|", sep="\n")
    for case, names in MODELLED.items():
        for name in names:
            launch, cells = compile_launch(s, *scaled(s, case, **ENTRIES[name])), []
            for key, same in (("us", False), ("us, inputs in L2", True)):
                us, predicted = min(measured[case, name][key]), modelled(s, launch, case, same)
                cells += [f"{us:.2f}", f"{predicted:.2f} ({100 * (predicted / us - 1):+.0f} %)"]
            print(f"| case {case}, {name} | " + " | ".join(cells) + " |", flush=True)


# -------------------------------------------------------------------------------------------------------------- results


def lines(value) -> str:
    """JSON with one line for each entry of a list."""
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value)


def table(record: dict) -> str:
    """Microseconds per call and, in brackets, the throughput in percent of the loads-only kernel's of the same mode."""
    alone = {(x["case"], x["mode"]): x for x in record["loads only"]}
    lines = ["| | " + " | ".join(f"case {case}" for case in CASES) + " |", "|---" * (1 + len(CASES)) + "|"]
    by_name = {}
    for x in record["submission"]:
        by_name.setdefault(x["name"], {})[x["case"]] = x

    def row(name, cells):
        lines.append(f"| {name} | " + " | ".join(cells) + " |")

    for name, of_case in by_name.items():
        mode = name if name in MODES else list(MODES)[3 if name.startswith("weights") else 2]
        if name in MODES:
            row(f"{name}: loads only", [f"{min(alone[c, mode]['us']):.2f}" for c in CASES])
            more = [min(alone[c, mode]["us with as many bytes into the SMs as the submission"]) for c in CASES]
            row(f"{name}: loads only, as many bytes into the SMs as the submission", [f"{x:.2f}" for x in more])
        best = {c: min(x["us"]) for c, x in of_case.items()}
        row(
            f"{name}: submission",
            [f"{us:.2f} ({100 * min(alone[c, mode]['us']) / us:.0f} %)" for c, us in best.items()],
        )
        if name in MODES:
            row(f"{name}: submission, inputs in L2", [f"{min(x['us, inputs in L2']):.2f}" for x in of_case.values()])
    submitted = by_name[list(MODES)[2]]
    row("MB loaded once", [f"{alone[c, mode]['unique bytes'] / 1e6:.1f}" for c in CASES])
    row("MB into the SMs: submission", [f"{submitted[c]['bytes into SMs'] / 1e6:.1f}" for c in CASES])
    row("KB into the busiest SM: submission", [f"{submitted[c]['bytes into the busiest SM'] / 1e3:.0f}" for c in CASES])
    return "\n".join(lines)


def main(command: str, folder: str = "") -> None:
    if command == "table":
        print(table(json.loads(RESULTS.read_text())))
    elif command == "model":
        model()
    else:
        {"compile": compile_all, "run": run}[command](Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
