"""Runs the submission, in its own process, which never holds a reference result, a seed or a case's text.

It decides nothing. Whatever runs here can be replaced by the submission, so nothing that the judge concludes on the
emulator rests on it: the judge writes inputs to, and reads results from, memory that both share, and runs the launches
itself. On a GPU the timer has to be here. What is used after the submission is imported has been taken before, and
`Guards` finds replacements of those and of the evaluator's own functions. Requests and replies are lines of JSON.
"""

import io
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import reference
import task
import utils
from emulated_gpu.arena import Arena
from evaluation.judge import configs, inputs, isolation, shared_tensors, worker_emulated, worker_gpu
from evaluation.judge.guards import Guards
from evaluation.judge.loading import explain, load_submission
from evaluation.judge.worker_emulated import EmulatedDevice
from evaluation.judge.worker_gpu import Case, CudaDevice, repeat
from evaluation.tasks import data as any_data
from evaluation.tasks import entry, ranks
from evaluation.tasks.entry import KERNEL
from evaluation.tasks.modules import FolderModules

NOT_READ = {"submissions", "users"}  # in the user's cache: what others have built, and ids of users


def main(options: dict, wire_fd: int, arena_fd: int, log_fd: int) -> None:
    """Serves requests until the judge closes the connection.

    options: submission, config (None, or sizes and changes, of configs.choose), device, machine, memory (bytes),
    threads, scratch (a folder), builds (a folder for the CUDA C++ of this submission), cache (of the user, to be
    read), judges (process ids), user (its id, or None), size and heap (of the shared memory, and where the
    submission's part begins), modules (of a task's folder: their names and paths).
    """
    os.setsid()
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    wire_fd, arena_fd = os.dup2(wire_fd, 100), os.dup2(arena_fd, 101)
    os.closerange(3, 100)
    os.closerange(102, 65536)
    os.set_inheritable(wire_fd, False)
    torch.set_num_threads(options["threads"])
    answer, receive = connect(wire_fd)
    timing = torch.equal, utils.clear_l2_cache_large, torch.Tensor.copy_
    try:
        arena = Arena(arena_fd, options["size"])
        answer(error=None, isolation=settle(options))

        def ask(message) -> dict:
            answer(**message)
            return receive()

        others = bool(options["modules"]) or options["entry"] != KERNEL  # whether they wrote the task
        if options["device"] == "cuda":
            device = CudaDevice()
        else:  # a GPU's address space would not fit into any limit
            device = EmulatedDevice(arena, options["heap"], ask, (options["machine"], options["devices"]), others)
            resource.setrlimit(resource.RLIMIT_DATA, (options["memory"],) * 2)
        own = any_data, entry, ranks, inputs, shared_tensors, worker_emulated, worker_gpu, sys.modules[__name__]
        guards = Guards([reference, task, utils, *own, *device.guarded])
        if others:
            FolderModules(options["modules"]).__enter__()  # for as long as this process lives
        kernel = load_submission(options["submission"], options["entry"])
        if options["config"]:
            configs.choose(sys.modules["submission"], *options["config"])
        problems = guards.replaced()
    except BaseException as error:
        traceback.print_exc()
        return answer(error=explain(error))
    answer(error="; ".join(problems) or None)
    serve(answer, receive, device, arena, kernel, guards, timing)


def connect(wire_fd: int) -> tuple[Callable[..., None], Callable]:
    """Return what sends a reply, and what awaits a request: None at the connection's end."""
    wire, lines = os.fdopen(wire_fd, "r+b", buffering=0), io.BufferedReader(io.FileIO(wire_fd, closefd=False))
    send, read, dumps, loads = wire.write, lines.readline, json.dumps, json.loads

    def answer(**reply) -> None:
        data = memoryview(dumps(reply).encode() + b"\n")
        while data:
            data = data[send(data) :]

    def receive() -> dict | None:
        line = read()
        return loads(line) if line else None

    return answer, receive


def settle(options: dict) -> str:
    """Go to the submission's folders, and give up whatever else this process may reach: how it is confined."""
    scratch, builds = options["scratch"], options["builds"]
    cache = [*filter(None, [os.environ.get("EMULATED_GPU_CACHE")]), options["cache"]]
    os.environ |= {"TMPDIR": scratch, "HOME": scratch, "TORCH_EXTENSIONS_DIR": builds}
    os.environ["EMULATED_GPU_CACHE"] = os.pathsep.join([builds, *cache])
    os.chdir(scratch)
    if folder := os.environ.get("EMULATED_GPU_PTX"):  # which this process, as whoever it will be, is to fill
        os.makedirs(folder, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        os.fchmod(fd, 0o777)
        os.close(fd)
    files = [os.path.realpath(sys.executable), options["submission"], __file__, torch.__file__, np.__file__]
    files += options["modules"].values()
    files += [str(path) for of in cache for path in Path(of).glob("*") if path.name not in NOT_READ]
    asked = filter(None, [folder, os.environ.get("CUTE_DSL_DUMP_DIR")])  # by whoever runs the judge
    folders = [] if options["device"] == "cuda" else [scratch, builds, *asked]
    return isolation.confine(files, folders, options["judges"], options["user"])


def serve(answer, receive, device, arena: Arena, kernel: Callable, guards: Guards, timing: tuple) -> None:
    """Does what the judge asks, request by request. timing: functions that were taken before the submission came."""
    case = None
    while True:
        try:
            request = receive()
            if request is None:
                return
            what = request["op"]
            if what == "object":
                device.place(request["number"], request["spec"])
                answer(error=None)
            elif what == "call":
                how = request["schedule"], request["record"], request.get("library", False)
                answer(error=None, **device.call(kernel, request["number"], *how))
            elif what == "guards":  # asked for by itself: what was returned is read at once
                answer(error="; ".join(guards.replaced()) or None)
            elif what == "configs":
                answer(error=None, configs=configs.described(sys.modules["submission"], request["asked"]))
            elif what == "case":
                case = None  # release the previous one first
                kind = reference.TASKS[request["task"]]
                case = Case(device, arena, kind, request["contents"], request["objects"], request["results"])
                answer(error=None)
            else:
                answer(**repeat(device, case, kernel, request, guards, *timing))
        except BaseException as error:
            traceback.print_exc()
            answer(error=explain(error))
