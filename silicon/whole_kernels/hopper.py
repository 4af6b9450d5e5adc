"""Times whole kernels on an H200 and on the timing model: CUTLASS's examples for Hopper, and this repository's.

    git clone --branch v4.5.2 --depth 1 https://github.com/NVIDIA/cutlass
    python -m silicon.whole_kernels.hopper COMMAND ...
        compile FOLDER CUTLASS   where CuTe DSL is: cubins, PTX and launches go to FOLDER
        run FOLDER               where the H200 is, with NumPy: writes FOLDER/hopper.json
        compare FOLDER           executes launches on the emulator and names the tensors that differ from the card's
        model FOLDER [--only WORD] [--half fitted|held-out]   models launches; adds to modelled_hopper.json
        table .                  prints the table; --write silicon/whole_kernels/README.md puts it there, and the
                                 intervals' data into emulated_gpu/model

A script (examples/python/CuTeDSL/cute/hopper/kernel) runs its own host code as on an H200, and what it would launch is
caught: the kernel, its grid, its parameters. So are launches of ragged_moe/ and of the load side of submission.py. The
card gets the same cubin and parameters with the addresses of its own tensors, the model the PTX that the cubin was made
of. Inputs are noise, the same on both. A launch named `compare` is also executed by the emulator, whose output must be
that of the card bit for bit. Nothing of CUTLASS is kept in this repository: hopper.json beside this file has times, and
digests of what was timed.

Timings, in microseconds per launch: "cold" is a fill of 1 GiB, then 3 launches on 3 inputs between two events; "warm"
is 3 launches on one input, after one that was not timed.
Half of the kernels (a script, its tile and types) is held out, as KERNELS says; which half was written down before the
first point was modelled. exam.py has kernels that are not in this table.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import Gpu, Timer, nvidia_smi
from silicon.entry import h200_loads
from silicon.golden.case import noise

ROOT = Path(__file__).resolve().parents[2]
TABLE, MODELLED = Path(__file__).with_suffix(".json"), Path(__file__).with_name("modelled_hopper.json")
WHOLE = Path(__file__).parents[2] / "emulated_gpu" / "model" / "whole_kernels_h200.json"
SCRIPTS = "examples/python/CuTeDSL/cute/hopper/kernel"
LAUNCHES = 3
TIMINGS = "cold", "warm"
SMALL = 1 << 16  # bytes: what is smaller than that may hold addresses, and is taken along as it is
FP8 = "--a_dtype Float8E4M3FN --b_dtype Float8E4M3FN"
INT8 = "--a_dtype Int8 --b_dtype Int8 --c_dtype Int32 --acc_dtype Int32"
DENSE, PERSISTENT = "dense_gemm/dense_gemm.py", "dense_gemm/dense_gemm_persistent.py"
TWO_ACC, GROUPED = "dense_gemm/dense_gemm_fp8_2xacc.py", "grouped_gemm/grouped_gemm.py"
MOE, LOADS = "ragged_moe", "silicon.entry.h200_loads"  # of this repository, launched by own_launch
TRITON = "silicon.whole_kernels.triton_kernels"
OWN = MOE, LOADS, TRITON


@dataclass(frozen=True)
class Kernel:
    """A kernel: a script with a tile and types as arguments. Each run adds other arguments, such as sizes."""

    name: str
    script: str
    arguments: str
    held_out: bool
    runs: tuple[str, ...]


def sizes(*shapes: str) -> tuple[str, ...]:
    """Runs of a dense GEMM: M, N, K."""
    return tuple(f"--mnkl {size},1" for size in shapes)


def _experts(*sizes: str) -> tuple[str, ...]:
    """Runs of the grouped GEMM: experts, rows of each, N, K."""
    return tuple(f"--experts {size}" for size in sizes)


KERNELS = (
    Kernel("dense 128x128 f16", DENSE, "--tile_shape_mn 128,128", False,
           (*sizes("1024,1024,1024", "2048,1024,512", "128,128,4096"),
            "--mnkl 1024,1024,1024,1 --cluster_shape_mn 2,1", "--mnkl 512,1024,1024,4")),
    Kernel("dense 128x256 f16", DENSE, "--tile_shape_mn 128,256", True,
           (*sizes("1024,2048,1024", "512,1024,4096", "128,256,4096"),
            "--mnkl 1024,2048,1024,1 --cluster_shape_mn 2,1")),
    Kernel("dense 64x64 f16", DENSE, "--tile_shape_mn 64,64", True,
           sizes("512,512,2048", "1024,1024,512", "64,64,4096")),
    Kernel("dense 128x128 e4m3", DENSE, f"{FP8} --tile_shape_mn 128,128", True,
           sizes("1024,1024,2048", "2048,1024,1024")),
    Kernel("dense 128x64 s8", DENSE, f"{INT8} --tile_shape_mn 128,64", False,
           sizes("1024,1024,2048", "512,512,4096", "128,64,8192")),
    Kernel("persistent 128x128 f16", PERSISTENT, "--tile_shape_mn 128,128", True,
           (*sizes("1024,1024,1024", "2048,2048,512"), "--mnkl 2048,2048,512,1 --cluster_shape_mn 2,1")),
    Kernel("persistent 128x256 f16", PERSISTENT, "--tile_shape_mn 128,256", False,
           sizes("1024,2048,1024", "2048,2048,1024", "128,256,4096")),
    Kernel("persistent 128x128 e4m3", PERSISTENT, f"{FP8} --tile_shape_mn 128,128", False,
           sizes("1024,1024,2048", "2048,2048,1024")),
    Kernel("2xacc 128x128 e4m3", TWO_ACC, "--tile_shape_mn 128,128", False,
           sizes("1024,1024,1024", "2048,1024,2048", "128,256,8192")),
    Kernel("2xacc 128x64 e4m3", TWO_ACC, "--tile_shape_mn 128,64", True,
           sizes("1024,1024,1024", "512,512,4096", "128,128,8192")),
    Kernel("grouped 128x128 f16", GROUPED, "--tile_shape_mn 128,128 --num_groups 4", False,
           ("--problem_sizes_mnkl (512,512,512,1),(256,1024,512,1),(128,512,1024,1),(640,512,512,1)",
            "--problem_sizes_mnkl (512,1024,1024,1),(512,1024,1024,1),(512,1024,1024,1),(512,1024,1024,1)")),
    Kernel("grouped 128x64 f16", GROUPED, "--tile_shape_mn 128,64 --num_groups 4", True,
           ("--problem_sizes_mnkl (512,512,512,1),(256,1024,512,1),(128,512,1024,1),(640,512,512,1)",
            "--problem_sizes_mnkl (256,1024,2048,1),(256,1024,2048,1),(256,1024,2048,1),(256,1024,2048,1)")),
    # Ours, with programmatic dependent launch but for the plain load side; moe's kernels as of commit 949122b, whose
    # ragged_moe/ `compile` wants: its configs have changed since
    Kernel("moe 16 e4m3", MOE, "--config {tokens:16,burst:4,prefetch:2}", True,
           _experts("1,8,4096,7168", "4,8,7168,2048")),
    Kernel("moe 64 cluster e4m3", MOE, "--config {tokens:64,cluster:2,prefetch:2}", False,
           _experts("1,64,4096,7168", "4,64,7168,2048")),
    Kernel("moe 128 cluster e4m3", MOE, "--config {tokens:128,cluster:2,prefetch:2,in_turn:1}", True,
           _experts("1,64,4096,7168", "1,128,7168,2048", "1,512,7168,2048")),
    Kernel("moe 128 two blocks e4m3", MOE, "--config {tokens:128,blocks:2,in_turn:1}", False,
           _experts("1,128,7168,2048", "1,512,7168,2048")),
    # moe's as of commit 86147da, each in the half of the one that it replaces
    Kernel("moe FEW e4m3", MOE, "--config {tokens:16,burst:4,prefetch:2}", True,
           _experts("1,8,4096,7168", "4,8,7168,2048")),
    Kernel("moe 64 later e4m3", MOE, "--config {tokens:64,cluster:2,prefetch:2}", False,
           _experts("1,64,4096,7168", "4,64,7168,2048")),
    Kernel("moe MORE e4m3", MOE, "--config {tokens:128,tokens_on_m:1,cluster:2,prefetch:2}", True,
           _experts("1,64,4096,7168", "1,128,7168,2048", "4,128,7168,2048")),
    Kernel("moe ALONE e4m3", MOE, "--config {tokens:128,tokens_on_m:1,prefetch:2}", False,
           _experts("1,128,7168,2048", "1,512,7168,2048")),
    Kernel("load side, plain u8", LOADS, "--config {pdl:0}", False, ("--case 1", "--case 2", "--case 3")),
    Kernel("load side, as submitted u8", LOADS, "--config {}", True, ("--case 1", "--case 2", "--case 3")),
)  # fmt: skip
COMPARED = {  # small runs whose output is compared, too: one of each kernel
    k.name: "--experts 3,40,256,1024" if k.script == MOE else "--mnkl 256,256,512,1"
    for k in KERNELS
    if k.script not in (GROUPED, LOADS)
}


def points(kernels: Sequence[Kernel] = KERNELS) -> list[tuple[str, Kernel, str]]:
    """(name, kernel, arguments) of every launch that is timed, cold and warm, and of those that are only compared."""
    found = [(f"{k.name}/{_name(run)}", k, f"{k.arguments} {run}") for k in kernels for run in k.runs]
    compared = [(f"{k.name}/compare", k, f"{k.arguments} {COMPARED[k.name]}") for k in kernels if k.name in COMPARED]
    return found + compared


def _name(run: str) -> str:
    words = run.split()
    options = dict(zip(words[::2], words[1::2], strict=True))
    cluster = options.get("--cluster_shape_mn")
    size = next(options[k] for k in ("--mnkl", "--problem_sizes_mnkl", "--experts", "--case") if k in options)
    return size.removesuffix(",1").replace(",", "x", 2) + (f" cluster {cluster.replace(',', 'x')}" if cluster else "")


# ------------------------------------------------------------------------------------------------ here: with CuTe DSL


def compile_all(folder: Path, cutlass: Path | None, only: str, kernels: Sequence[Kernel]) -> None:
    """Writes launches.json, and a cubin and a PTX file for every kernel that a point needs."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "launches.json"
    launches = json.loads(file.read_text()) if file.exists() else {}
    for name, kernel, arguments in points(kernels):
        if only in name and name not in launches:
            own = kernel.script in OWN
            script = kernel.script if own else str(cutlass.resolve() / SCRIPTS / kernel.script)
            request = [str(folder), script, *arguments.split(), *([] if own else ["--skip_ref_check"])]
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "silicon.whole_kernels.hopper", "child", *request],
                cwd=ROOT, capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                raise SystemExit(f"{name}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
            launches[name] = json.loads(done.stdout.splitlines()[-1])
            file.write_text(json.dumps(launches, indent=1))
            print(name, launches[name]["grid"], launches[name]["kernel"][:60], flush=True)


def child(folder: Path, script: str, arguments: list[str]) -> None:
    """Prints a script's launch as JSON and writes its kernel to the folder; runs in a process of its own."""
    import runpy

    os.environ |= {"EMULATED_GPU_RUN": '{"machine": "h200"}', "CUTE_DSL_LINEINFO": "0"}
    from emulated_gpu.device import DEVICE
    from emulated_gpu.serve import run

    run.configure()
    run.install()
    caught = []

    def catch(*args, **options):
        caught.append((args, options))

    if not script.endswith(GROUPED):  # others launch only what converts inputs, which are replaced by noise
        DEVICE.launch = catch

    def benchmark(call, *, workspace_generator, **_):
        work = workspace_generator()
        caught.clear()
        DEVICE.launch = catch
        call(*work.args, **work.kwargs)
        (launch,) = caught
        caught.append(describe(*launch))
        return 1.0

    def describe(args, options) -> dict:
        module, kernel, grid, block, params = args
        image = module.text.encode()
        name = hashlib.sha256(image).hexdigest()[:16]
        (folder / f"{name}.ptx").write_bytes(image)
        (folder / f"{name}.cubin").write_bytes(module.machine_code)
        tensors: list[dict] = []
        starts: dict[int, int] = {}
        moves = relocate(DEVICE.memory, params, tensors, starts)
        return {
            "image": name, "kernel": kernel, "grid": grid, "block": block, "cluster": options["cluster"],
            "shared": options["dynamic_shared"], "pdl": options["pdl"], "params": base64.b64encode(params).decode(),
            "moves": moves, "tensors": tensors,
            "parameters": [(p.offset, p.size) for p in module.program(kernel).kernel.params],
        }  # fmt: skip

    if script in OWN:
        alive = own_launch(script, dict(zip(arguments[::2], arguments[1::2], strict=True)))  # noqa: F841
        (launch,) = caught
        print(json.dumps(describe(*launch)))
        return
    from cutlass import torch as tensors_of
    from cutlass.cute import testing

    made, alive = tensors_of.cute_tensor_like, []  # grouped_gemm.py frees what its table of pointers names

    def kept(*args, **options):
        alive.append(made(*args, **options))
        return alive[-1]

    tensors_of.cute_tensor_like = kept
    testing.benchmark = benchmark
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    print(json.dumps(caught[-1]))


def own_launch(script: str, options: dict[str, str]):
    """Launches a kernel of this repository once, by its own host code. Returns operands that have to stay."""
    import torch

    import emulated_gpu

    if script == TRITON:
        return import_module(script).launch(options)
    pairs = (entry.split(":") for entry in options["--config"].strip("{}").split(",") if entry)
    entries = {name: int(value) for name, value in pairs}
    if script == LOADS:
        s, case = h200_loads.load_submission(), int(options["--case"])
        made = s.Launch(s.GroupGemm, *h200_loads.scaled(s, case, **{k: bool(v) for k, v in entries.items()}))
        empty = [torch.empty(nbytes, dtype=torch.uint8) for nbytes in h200_loads.tensor_bytes(case)]
        tensors = emulated_gpu.device_tensors(empty, copy=False)
        return made([tensor.data_ptr() for tensor in tensors])
    from ragged_moe.kernels.config import Config
    from ragged_moe.layers.grouped_gemm_fp8 import launcher

    # The points are named in words that ragged_moe.kernels.config.Config has others for
    swap_ab = not entries.pop("tokens_on_m", 0)
    config = Config(block_m=entries.pop("tokens"), swap_ab=swap_ab, **entries)
    experts, m, n, k = map(int, options["--experts"].split(","))
    generator = torch.Generator().manual_seed(1)
    operands = (
        torch.empty(experts * m, k, dtype=torch.uint8),
        torch.randn(k // 128, experts * m, generator=generator),
        torch.empty(experts, n, k, dtype=torch.uint8),
        torch.randn(experts, n // 128, k // 128, generator=generator),
        torch.arange(experts + 1, dtype=torch.int32) * m,
        torch.empty(experts * m, n, dtype=torch.bfloat16),
    )
    tensors = emulated_gpu.device_tensors(operands)
    launcher(torch.device("cpu"), config)(tensors, experts * m, n, k, experts)


def relocate(memory, data: bytes, tensors: list[dict], starts: dict[int, int]) -> list[tuple[int, int, int]]:
    """The addresses in `data`: (offset, number of the tensor, offset in it). New tensors are added to `tensors`.

    A tensor has its "bytes" and, if it is small, its "content" and the addresses in that; a large one is noise.
    """
    moves = []
    for at, word in enumerate(np.frombuffer(data[: len(data) // 8 * 8], np.uint64).tolist()):
        if not memory.covers(word, 1):
            continue
        region = memory.find(word, 1, False)
        if region.start not in starts:
            starts[region.start] = len(tensors)
            tensors.append({"bytes": region.size})
            if region.size < SMALL:
                content = bytes(memory.view(region.start, region.size))
                tensors[starts[region.start]] |= {"content": base64.b64encode(content).decode()}
                tensors[starts[region.start]]["moves"] = relocate(memory, content, tensors, starts)
        moves.append((8 * at, starts[region.start], word - region.start))
    return moves


# --------------------------------------------------------------------------------------------------------------- both


def patched(data: bytes, moves: list, addresses: list[int]) -> bytes:
    """`data` with the addresses of tensors where `moves` says."""
    data = bytearray(data)
    for at, tensor, offset in moves:
        data[at : at + 8] = (addresses[tensor] + offset).to_bytes(8, "little")
    return bytes(data)


_noise = functools.lru_cache(maxsize=8)(noise)


def contents(launch: dict, addresses: list[int], kind: str) -> list[np.ndarray]:
    """The bytes, uint8, that the tensors of a launch hold before it. kind: the type of A and B."""
    out = []
    for n, tensor in enumerate(launch["tensors"]):
        if "content" in tensor:
            out.append(
                np.frombuffer(patched(base64.b64decode(tensor["content"]), tensor["moves"], addresses), np.uint8)
            )
            continue
        data = _noise(tensor["bytes"], 1000 + n)
        if kind == "f16":  # magnitudes from 2 ** -3 to 2
            data = ((data.view(np.uint16) & 0x8FFF) | 0x3000).view(np.uint8)
        elif kind == "e4m3":  # from 2 ** -3 to 2
            data = (data & 0x9F) | 0x20
        out.append(data)
    return out


def _sha(data: np.ndarray) -> str:
    return hashlib.sha256(data.tobytes()).hexdigest()


def digest(folder: Path, launch: dict) -> str:
    """Changes with anything that the GPU saw except addresses and names of source files."""
    text = (folder / f"{launch['image']}.ptx").read_text().rstrip("\0").splitlines()
    lines = [x for x in text if not x.lstrip().startswith((".file", ".loc"))]
    known = {k: v for k, v in launch.items() if k not in ("params", "image", "tensors")}
    return hashlib.sha256("\n".join([*lines, json.dumps(known, sort_keys=True)]).encode()).hexdigest()[:16]


# --------------------------------------------------------------------------------------------------- there: on the H200


def measure_folder(folder: Path, recorded: str, only: str) -> None:
    """Times every launch of the folder, cold and warm, in two rounds, and keeps digests of the outputs to compare.

    Adds to the folder's file of that name, so that one can go on with --only after a launch that failed.
    """
    launches = json.loads((folder / "launches.json").read_text())
    gpu, smi = Gpu(), [nvidia_smi()]
    file = folder / recorded
    known = json.loads(file.read_text()) if file.exists() else {"points": {}, "outputs": {}}
    result, outputs = known["points"], known["outputs"]
    timer = Timer(gpu)
    contestants, made = {}, {}
    for name, x in launches.items():
        if only not in name:
            continue
        kind = name.split("/")[0].split()[-1]
        if x["image"] not in made:
            made[x["image"]] = gpu.kernel((folder / f"{x['image']}.cubin").read_bytes(), x["kernel"], x["shared"])
        shape = made[x["image"]], tuple(x["grid"]), tuple(x["block"])
        prepared, compared = [], name.endswith("compare")
        for _ in range(1 if compared else LAUNCHES):
            addresses = [gpu.allocate(t["bytes"]) for t in x["tensors"]]
            before = contents(x, addresses, kind)
            for address, data in zip(addresses, before, strict=True):
                gpu.write(address, data)
            params = patched(base64.b64decode(x["params"]), x["moves"], addresses)
            args = [params[at : at + size] for at, size in x["parameters"]]
            prepared.append(gpu.launch(*shape, args, tuple(x["cluster"] or ()), x["shared"], x["pdl"]))
        prepared[0]()
        gpu.sync()
        if compared:
            after = [gpu.read(a, t["bytes"]) for a, t in zip(addresses, x["tensors"], strict=True)]
            changed = {n: _sha(b) for n, (a, b) in enumerate(zip(before, after)) if not np.array_equal(a, b)}
            outputs[name] = {"digest": digest(folder, x), "tensors": changed}
        else:
            contestants[name, "cold"], contestants[name, "warm"] = prepared, prepared[:1] * LAUNCHES
    rounds = {key: [] for key in contestants}
    for _ in range(2):
        for key, prepared in contestants.items():
            before = None if key[1] == "cold" else (timer.flush, prepared[0])
            rounds[key].append(float(np.median(timer.rounds(prepared, 11, before))))
    smi.append(nvidia_smi())
    for (name, timing), us in rounds.items():
        entry = result.setdefault(name, {"digest": digest(folder, launches[name])})
        entry[timing] = [round(x, 3) for x in us]
    machine = {**gpu.describe(), "nvidia-smi": smi, "date": datetime.date.today().isoformat()}
    file.write_text(json.dumps({"machine": machine, "points": result, "outputs": outputs}, indent=1))


# ----------------------------------------------------------------------------------------------------------- the model


def _here(launch: dict, name: str, copies: int) -> list[tuple[list, bytes]]:
    """Copies of a launch's tensors in the emulated device's memory: (arrays, parameters) for each copy."""
    from emulated_gpu.device import DEVICE, allocate

    out = []
    for _ in range(copies):
        arrays = [allocate(t["bytes"]) for t in launch["tensors"]]
        for array in arrays:
            DEVICE.adopt(array, "tensor")
        addresses = [array.ctypes.data for array in arrays]
        for array, data in zip(arrays, contents(launch, addresses, name.split("/")[0].split()[-1]), strict=True):
            array[:] = data
        out.append((arrays, patched(base64.b64decode(launch["params"]), launch["moves"], addresses)))
    return out


def _launch(folder: Path, x: dict, params: bytes, pdl: bool = True) -> None:
    from emulated_gpu.chip import H200
    from emulated_gpu.device import DEVICE

    module = DEVICE.module((folder / f"{x['image']}.ptx").read_text())
    cluster = None if x["cluster"] is None else tuple(x["cluster"])
    with DEVICE.as_chip(H200):
        DEVICE.launch(
            module, x["kernel"], tuple(x["grid"]), tuple(x["block"]), params,
            cluster=cluster, dynamic_shared=x["shared"], pdl=x["pdl"] and pdl,
        )  # fmt: skip


def model(folder: Path, name: str, x: dict, profile) -> dict[str, float]:
    """Microseconds per launch that the model predicts, "cold" and "warm".

    Without dependent launch a launch takes as long as the one before it: one on other inputs and one again suffice.
    """
    import emulated_gpu

    order = (0, 1, 1) if not x["pdl"] else (0, 1, 2, 2, 2, 2)
    inputs = _here(x, name, max(order) + 1)
    with emulated_gpu.timing(profile) as timed:
        for i, which in enumerate(order):
            _launch(folder, x, inputs[which][1], pdl=i != LAUNCHES)
    ends = timed.ends_us
    events = profile["launch"]["events_ns"] / 1e3 / LAUNCHES
    if x["pdl"]:
        return {"cold": ends[2] / LAUNCHES + events, "warm": (ends[5] - ends[2]) / LAUNCHES + events}
    cold = (ends[0] + (LAUNCHES - 1) * (ends[1] - ends[0])) / LAUNCHES
    return {"cold": cold + events, "warm": ends[2] - ends[1] + events}


def compare(folder: Path, name: str, x: dict) -> list[str]:
    """Executes a launch on the emulator; returns the tensors whose bytes differ from the card's."""
    import emulated_gpu

    known = json.loads(TABLE.read_text())["outputs"][name]
    assert known["tensors"] and known["digest"] == digest(folder, x), f"{name} was run with another launch"
    ((arrays, params),) = _here(x, name, 1)
    with emulated_gpu.session():
        _launch(folder, x, params)
    return [n for n, sha in known["tensors"].items() if sha != _sha(arrays[int(n)])]


def problem(name: str) -> tuple[str, str]:
    """Types and size of a point: kernels that have both in common do the same work."""
    kernel, size = name.split("/")
    return kernel.split()[-1], size.split(" cluster")[0]


def table(measured: dict, modelled: dict, of: Sequence[Kernel] = KERNELS) -> str:
    """Every point, and the errors of the fitted and the held-out half, in Markdown."""
    kernels = {name: kernel for name, kernel, _ in points(of)}
    lines = ["| | cold: measured, us | model | warm: measured, us | model |", "|---|---|---|---|---|"]
    errors: dict[bool, list[float]] = {True: [], False: []}
    for held_out in (False, True):
        names = [n for n in kernels if n in modelled and kernels[n].held_out == held_out]
        if names:
            lines.append(f"| **{'held out' if held_out else 'fitted'}** | | | | |")
        for name in names:
            cells = []
            for timing in TIMINGS:
                us, of = modelled[name][timing], statistics.median(measured[name][timing])
                errors[held_out].append(us / of - 1)
                cells += [f"{of:.2f}", f"{us:.2f} ({us / of - 1:+.0%})"]
            lines.append(f"| {name.replace('/', ', ')} | {' | '.join(cells)} |")
    for held_out, found in errors.items():
        if found:
            size = [abs(e) for e in found]
            worst = f"median error {statistics.median(size):.1%}, worst {max(size):.0%}"
            half = f"{'Held out' if held_out else 'Fitted'}: {len(found)} points"
            lines += ["", f"{half}, {worst}, mean signed {statistics.mean(found):+.1%}."]
    right, pairs = order(measured, modelled)
    if pairs:
        lines += ["", f"Of {pairs} pairs on one problem that are more than 5 % apart {right} come in the right order."]
    return "\n".join(lines)


def errors(measured: dict, modelled: dict) -> dict[str, list[float]]:
    """Measured and modelled us by point, from which emulated_gpu/model/uncertainty.py makes its intervals of an
    H200."""
    return {
        f"{name}, {timing}": [round(statistics.median(measured[name][timing]), 3), modelled[name][timing]]
        for name in modelled
        for timing in TIMINGS
    }


def order(measured: dict, modelled: dict) -> tuple[int, int]:
    """How many pairs of points on one problem, more than 5 % apart, the model orders right, and how many there are."""
    right = pairs = 0
    for a, b in itertools.combinations(modelled, 2):
        for timing in TIMINGS if problem(a) == problem(b) else ():
            of = [statistics.median(measured[n][timing]) for n in (a, b)]
            if max(of) > 1.05 * min(of):
                pairs += 1
                right += (of[0] < of[1]) == (modelled[a][timing] < modelled[b][timing])
    return right, pairs


def main(doc: str, kernels: Sequence[Kernel], recorded: Path, marker: str) -> None:
    """Runs the command line for a set of kernels.

    recorded: the file of what the card took; what the model says lies beside it. marker: of the table in a page.
    """
    kept = recorded.with_name(f"modelled_{recorded.name}")
    parser = command.parser(doc)
    parser.add_argument("what", choices=("compile", "run", "model", "compare", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("cutlass", nargs="?", type=command.existing)
    parser.add_argument("--only", default="", help="points whose name contains this")
    parser.add_argument("--half", choices=("fitted", "held-out"))
    command.add_set(parser)
    parser.add_argument("--write", type=Path, help="the file whose table is replaced")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.what == "compile":
        if not options.cutlass and any(k.script not in OWN for k in kernels):
            parser.error("compile needs a checkout of CUTLASS")
        return compile_all(folder, options.cutlass, options.only, kernels)
    if options.what != "table" and not (folder / "launches.json").exists():
        parser.error(f"{folder} has no launches.json: `compile` writes it")
    if options.what == "run":
        with command.on_gpu():
            return measure_folder(folder, recorded.name, options.only)
    measured = json.loads(recorded.read_text())["points"] if recorded.exists() else {}
    modelled = json.loads(kept.read_text()) if kept.exists() else {}
    if options.what != "table":
        profile = command.profile_with(options.set)
        launches = json.loads((folder / "launches.json").read_text())
        for name, kernel, _ in points(kernels):
            if options.only not in name or options.half not in (None, "held-out" if kernel.held_out else "fitted"):
                continue
            if options.what == "compare" and name.endswith("compare"):
                print(name, "differs in tensors", compare(folder, name, launches[name]), flush=True)
            elif options.what == "model" and not name.endswith("compare"):
                found = model(folder, name, launches[name], profile)
                for timing, us in found.items():
                    of = statistics.median(measured[name][timing]) if name in measured else float("nan")
                    print(f"{us:9.2f} {of:9.2f} {us / of - 1:+7.1%} {name} {timing}", flush=True)
                if not options.set:
                    modelled[name] = {timing: round(us, 3) for timing, us in found.items()}
                    kept.write_text(json.dumps(modelled, indent=1) + "\n")
    elif options.write:
        command.write_table(options.write, marker, table(measured, modelled, kernels))
        if recorded == TABLE:
            lines = (f" {json.dumps(name)}: {json.dumps(pair)}" for name, pair in errors(measured, modelled).items())
            WHOLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    else:
        print(table(measured, modelled, kernels))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        main(__doc__, KERNELS, TABLE, "hopper")
