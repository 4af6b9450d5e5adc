"""The submission's own process: runs its kernel on inputs from files and leaves the results in a file.

It never holds a reference result, a seed or a case's text, and it decides nothing about results: the judge compares
the bytes. What it uses after the submission is imported (timer, comparison, L2 flush) it has taken before, and
`Guards` finds replacements of those and of the evaluator's own functions. Requests and replies are JSON.
"""

import importlib.util
import inspect
import json
import os
import resource
import sys
import time
import traceback
import types

import numpy as np
import torch

import reference
import task
import utils
from evaluation import inputs

FOREIGN = (  # what the evaluator uses of other people's modules
    (torch, "equal allclose isclose isnan randn empty from_numpy load save"),
    (torch.Tensor, "clone copy_ fill_ view data_ptr __eq__ __ne__"),
    (torch.cuda, "Event synchronize"),
    (torch.cuda.Event, "__new__ record elapsed_time synchronize query wait"),
    (time, "perf_counter perf_counter_ns monotonic time time_ns"),
    (json, "dumps loads"),
    (np, "memmap asarray"),
)
METHODS = (types.FunctionType, staticmethod, classmethod, property)


class Guards:
    """Remembers what a submission has no business replacing, and names what it has replaced.

    That is FOREIGN, the functions and classes in `modules`, and the methods of classes defined there.
    """

    def __init__(self, modules):
        places = [(place, names.split()) for place, names in FOREIGN]
        for module in modules:
            package = module.__name__.partition(".")[0]
            inside = {
                name: value
                for name, value in vars(module).items()
                if str(getattr(value, "__module__", "")).partition(".")[0] == package
            }
            places.append((module, list(inside)))
            for value in inside.values():
                if isinstance(value, type):
                    places.append((value, [name for name, item in vars(value).items() if isinstance(item, METHODS)]))
        static = inspect.getattr_static  # not through descriptors: those make a new object at each look
        self.taken = [(place, name, static(place, name, None)) for place, names in places for name in names]

    def replaced(self) -> list[str]:
        return [
            f"the submission replaced {getattr(place, '__name__', place)}.{name}"
            for place, name, original in self.taken
            if inspect.getattr_static(place, name, None) is not original
        ]


class EmulatedDevice:
    """The CPU as a B200: the emulator serves torch's `cuda` and CuTe DSL; calls run in a session with all checks."""

    def __init__(self):
        import emulator
        from emulator.serve import torch_cuda

        self.emulator = emulator
        torch_cuda.install()  # before the submission imports the DSL
        self._to_device = torch_cuda.to_device
        self.guarded = [module for name, module in sys.modules.items() if name.partition(".")[0] == "emulator"]
        self._device_tensors, self._session = emulator.device_tensors, emulator.session
        self._protect, self._written = emulator.protect, emulator.written

    def upload(self, tensors):
        return inputs.mapped(self._to_device, self._device_tensors(tensors))

    def protect(self, tensors):
        """Kernels may only read these."""
        self._protect(tensors)

    def run(self, kernel, data, schedule, clear_l2, snapshot):
        """(outputs, findings, None): there are no times."""
        outputs = []
        with self._session(schedule=schedule, checks=True) as session:
            for position, item in enumerate(data):
                self._written(item)  # by the kernels that would have filled it
                outputs.append(kernel(item))
                snapshot(position)
        return outputs, session.report(), None


class CudaDevice:
    """A B200."""

    def __init__(self):
        self.guarded = []
        self._event, self._synchronize = torch.cuda.Event, torch.cuda.synchronize
        self._record, self._elapsed = torch.cuda.Event.record, torch.cuda.Event.elapsed_time

    def upload(self, tensors):
        return inputs.mapped(torch.Tensor.cuda, tensors)

    def protect(self, tensors):
        """Nothing: `Case.changed` compares the inputs after each call."""

    def run(self, kernel, data, schedule, clear_l2, snapshot):
        """(outputs, findings, nanoseconds per call), timed as the grader does: calls back to back between events."""
        outputs = []
        self._synchronize()
        if clear_l2:
            clear_l2()
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        self._record(start)
        for position, item in enumerate(data):
            outputs.append(kernel(item))
            snapshot(position)
        self._record(end)
        self._synchronize()
        return outputs, [], self._elapsed(start, end) / len(data) * 1e6


class Case:
    """Inputs of one case on the device: pristine contents from files, and `objects` that the kernel gets to see.

    The objects stay where they are while their contents change, so that a result kept by identity, address or shape is
    a wrong result.
    """

    def __init__(self, device, kind: task.Task, files: list[str], objects: int, results: str):
        self.device = device
        self.contents = [torch.load(file, weights_only=True) for file in files]
        self.objects, self.handed = [], []  # the kernel gets lists of its own: it may edit them, not what is checked
        for i in range(objects):
            own = inputs.mapped(torch.Tensor.clone, self.contents[i % len(files)])
            self.objects.append(kind.upload(own, device.upload))
            self.handed.append(tuple(list(item) if isinstance(item, list) else item for item in self.objects[-1]))
            device.protect(self.tensors(self.objects[-1]))
        # The judge maps the same file: [objects, elements of all c], float16 bits.
        elements = sum(c.numel() for c in self.outputs(0))
        self.results = np.memmap(results, np.int16, "r+", shape=(objects, elements)) if elements else None

    def tensors(self, data):
        """Input tensors of `data`, in a fixed order; c comes apart."""
        return inputs.operands(data) + inputs.scales(data)

    def refill(self, i: int, content: int, signs: int | None) -> None:
        """New contents for object i, and NaN in its c."""
        for tensor, source in zip(self.tensors(self.objects[i]), self.tensors(self.contents[content])):
            inputs.as_bytes(tensor).copy_(inputs.as_bytes(source))
        if signs is not None:
            inputs.flip_inputs(self.objects[i], inputs.draw_signs(signs, self.objects[i]))
        for c in self.outputs(i):
            c.fill_(float("nan"))

    def changed(self, i: int, content: int, signs: int | None, equal) -> bool:
        """Whether the inputs of object i are no longer what `refill` wrote."""
        if signs is not None:
            inputs.flip_inputs(self.objects[i], inputs.draw_signs(signs, self.objects[i]))
        pairs = zip(self.tensors(self.objects[i]), self.tensors(self.contents[content]))
        return not all(equal(inputs.as_bytes(t).cpu(), inputs.as_bytes(source)) for t, source in pairs)

    def outputs(self, i: int) -> list[torch.Tensor]:
        """The c tensors of object i, [M, N, L] each."""
        return inputs.outputs(self.objects[i])

    def store(self, i: int, outputs: list[torch.Tensor]) -> None:
        """Copies results to where the judge reads them."""
        offset = 0
        for c in outputs:
            if c.numel():
                self.results[i, offset : offset + c.numel()] = inputs.as_bytes(c).cpu().numpy().ravel()
            offset += c.numel()


def returned_wrong(returned, outputs: list[torch.Tensor], single: bool) -> str | None:
    """What is wrong with the returned object: it has to be the list of the given c tensors, or the `single` one."""
    if single and not isinstance(returned, torch.Tensor):
        return f"custom_kernel returned {type(returned).__name__}, not the tensor c"
    returned = [returned] if single else returned
    if not isinstance(returned, (list, tuple)):
        return f"custom_kernel returned {type(returned).__name__}, not the list of the c tensors"
    if len(returned) != len(outputs):
        return f"custom_kernel returned {len(returned)} tensors for {len(outputs)} groups"
    for group, (got, c) in enumerate(zip(returned, outputs)):
        if not isinstance(got, torch.Tensor):
            return f"group {group}: custom_kernel returned {type(got).__name__}, not a tensor"
        if (got.shape, got.dtype) != (c.shape, c.dtype):
            return f"group {group}: returned {tuple(got.shape)} {got.dtype}, not {tuple(c.shape)} {c.dtype}"
        if c.numel() and (got.data_ptr(), got.stride()) != (c.data_ptr(), c.stride()):
            return f"group {group}: the returned tensor is not the given c"
    return None


def load_submission(path: str):
    """custom_kernel of the file, imported as the module `submission`. Raises what the file raises."""
    spec = importlib.util.spec_from_file_location("submission", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    return module.custom_kernel


def explain(error: BaseException) -> str:
    """One or a few lines: what was raised and where in the submission."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.basename(f.filename) == "submission.py"]
    where = f" (line {frames[-1].lineno} of the submission)" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def main(connection, submission: str, device_name: str, log: str, memory_bytes: int, threads: int) -> None:
    """Serves requests until the judge closes the connection."""
    os.setsid()  # so that the judge can end this process with all that the submission starts
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch.set_num_threads(threads)
    wire = os.fdopen(os.dup(connection.fileno()), "r+b", buffering=0)
    send, receive, dumps, loads = wire.write, wire.readline, json.dumps, json.loads
    equal, clear_l2 = torch.equal, utils.clear_l2_cache_large

    def answer(**reply):
        send(dumps(reply).encode() + b"\n")

    try:
        device = CudaDevice() if device_name == "cuda" else EmulatedDevice()
        if device_name != "cuda":  # a GPU's address space would not fit into any limit
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        guards = Guards([reference, task, utils, inputs, sys.modules[__name__], *device.guarded])
        kernel = load_submission(submission)
        problems = guards.replaced()
    except BaseException as error:
        traceback.print_exc()
        return answer(error=explain(error))
    answer(error="; ".join(problems) or None)

    case = None
    while True:
        line = receive()
        if not line:
            return
        try:
            request = loads(line)
            if request["op"] == "case":
                case = None  # release the previous one first
                kind = reference.TASKS[request["task"]]
                case = Case(device, kind, request["files"], request["objects"], request["results"])
                answer(error=None)
                continue
            contents, signs, order = request["contents"], request["signs"], request["order"]
            for i in order:
                case.refill(i, contents[i], signs[i])
            snapshots = []

            def snapshot(position):
                """In an audit every c is copied right after its call: work put off to a later call comes too late."""
                if request["audit"]:
                    snapshots.append([c.clone() for c in case.outputs(order[position])])

            begin = time.perf_counter()
            data = [case.handed[i] for i in order]
            flush = clear_l2 if request["timed"] else None
            returned, findings, ns = device.run(kernel, data, request["schedule"], flush, snapshot)
            seconds = time.perf_counter() - begin
            problems = findings + guards.replaced()
            for position, i in enumerate(order):
                case.store(i, snapshots[position] if snapshots else case.outputs(i))
                if wrong := returned_wrong(returned[position], case.outputs(i), single=len(case.objects[i]) != 4):
                    problems.append(wrong)
                if case.changed(i, contents[i], signs[i], equal):
                    problems.append("the submission changed its inputs")
            answer(error="; ".join(dict.fromkeys(problems)) or None, ns=ns, seconds=seconds)
        except BaseException as error:
            traceback.print_exc()
            answer(error=explain(error))
