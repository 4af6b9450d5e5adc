"""Runs the submission on a GPU: inputs, calls that are timed, and results for the judge to compare.

The timer has to be here. What it uses has been taken before the submission is imported.
"""

import torch

import task
from emulated_gpu.arena import Arena
from evaluation.judge import inputs
from evaluation.judge.guards import Guards
from evaluation.judge.shared_tensors import unplaced
from evaluation.judge.verdict import Refused
from evaluation.tasks import data as any_data


class CudaDevice:
    """Times calls on the GPU of this machine."""

    def __init__(self):
        self.guarded = []
        self._event, self._synchronize = torch.cuda.Event, torch.cuda.synchronize
        self._record, self._elapsed = torch.cuda.Event.record, torch.cuda.Event.elapsed_time

    def upload(self, tensors):
        return inputs.mapped(torch.Tensor.cuda, tensors)

    def run(self, kernel, data, clear_l2, snapshot):
        """Times calls as the grader does, back to back between events: (outputs, nanoseconds per call).

        clear_l2: flushes L2 before the first, or None. snapshot(position, output): is called after each.
        """
        outputs = []
        self._synchronize()
        if clear_l2:
            clear_l2()
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        self._record(start)
        for position, item in enumerate(data):
            outputs.append(kernel(item))
            snapshot(position, outputs[-1])
        self._record(end)
        self._synchronize()
        return outputs, self._elapsed(start, end) / len(data) * 1e6


class Case:
    """Holds the inputs of one case: pristine contents in shared memory, and `objects` on the GPU for the kernel to see.

    The objects stay where they are while their contents change, so that a result kept by identity, address or shape is
    a wrong result.
    """

    def __init__(self, device, arena: Arena, kind: task.Task, contents: list, objects: int, results: int):
        """Uploads the objects. contents: specs of placed data. results: an address for what the judge will compare."""
        self.device = device
        self.contents = [unplaced(spec, lambda item: any_data.tensor_at(arena.view, item))() for spec in contents]
        self.objects, self.handed = [], []  # the kernel gets lists of its own: it may edit them, not what is checked
        for i in range(objects):
            own = inputs.mapped(torch.Tensor.clone, self.contents[i % len(contents)])
            self.objects.append(kind.upload(own, device.upload))
            self.handed.append(tuple(list(item) if isinstance(item, list) else item for item in self.objects[-1]))
        elements = sum(c.numel() for c in self.outputs(0))
        view = arena.view(results, 2 * objects * elements)
        self.results = torch.from_numpy(view).view(torch.float16).view(objects, elements) if elements else None

    def tensors(self, data):
        """Lists the input tensors of `data`, without c, in a fixed order."""
        return inputs.operands(data) + inputs.scales(data)

    def refill(self, i: int, content: int, disguise: int | None) -> None:
        """Writes new contents into object i, and NaN into its c."""
        self.write(self.objects[i], content, disguise)
        for c in self.outputs(i):
            c.fill_(float("nan"))

    def write(self, data, content: int, disguise: int | None) -> None:
        for tensor, source in zip(self.tensors(data), self.tensors(self.contents[content])):
            inputs.as_bytes(tensor).copy_(inputs.as_bytes(source))
        if disguise is not None:
            inputs.disguise(data, inputs.draw(disguise, data))

    def changed(self, i: int, content: int, disguise: int | None, equal) -> bool:
        """Tells whether the inputs of object i are no longer what `refill` wrote."""
        pristine = inputs.mapped(torch.empty_like, self.objects[i])
        self.write(pristine, content, disguise)
        pairs = zip(self.tensors(self.objects[i]), self.tensors(pristine))
        return not all(equal(inputs.as_bytes(t), inputs.as_bytes(source)) for t, source in pairs)

    def outputs(self, i: int) -> list[torch.Tensor]:
        """Lists the c tensors of object i, [M, N, L] each."""
        return inputs.outputs(self.objects[i])

    def store(self, i: int, results: list[torch.Tensor], copy) -> None:
        """Copies results to where the judge reads them."""
        offset = 0
        for c in results:
            if c.numel():
                copy(self.results[i, offset : offset + c.numel()].view(c.shape), c)
            offset += c.numel()


def results_of(returned, outputs: list[torch.Tensor], single: bool) -> list[torch.Tensor] | str:
    """Lists the returned tensors, which may be new ones, on the GPU and like `outputs`; or says what is wrong with
    them."""
    try:
        found = inputs.result_specs(any_data.described(returned), single)
    except Refused as error:
        return str(error)
    if len(found) != len(outputs):
        return f"custom_kernel returned {len(found)} tensors for {len(outputs)} groups"
    returned = [returned] if single else list(returned)
    for group, (got, c) in enumerate(zip(returned, outputs)):
        if (got.shape, got.dtype) != (c.shape, c.dtype):
            return f"group {group}: returned {tuple(got.shape)} {got.dtype}, not {tuple(c.shape)} {c.dtype}"
        if got.device != c.device:
            return f"group {group}: returned a tensor on {got.device}, not on {c.device}"
    return returned


def elsewhere(results: list[torch.Tensor], taken: inputs.Taken, call: int) -> str | None:
    """Says what is wrong if a result lies where an input or another result does, else None."""
    for group, got in enumerate(results):
        size = any_data.extent(got.shape, got.stride(), got.element_size())
        if there := taken.add(got.data_ptr(), size, f"the result of call {call}, group {group}"):
            return f"call {call}, group {group}: the returned tensor is not new, it lies in {there}"
    return None


def repeat(device, case: Case, kernel, request: dict, guards: Guards, equal, clear_l2, copy) -> dict:
    """Makes one timed repeat, a call per object: the reply."""
    contents, disguises, order = request["contents"], request["disguises"], request["order"]
    for i in order:
        case.refill(i, contents[i], disguises[i])
    snapshots, modes = [], torch._C._len_torch_function_stack()

    def snapshot(position, output):
        """In an audit every result is copied right after its call: work put off to a later call comes too late."""
        if request["audit"]:
            results = results_of(output, case.outputs(order[position]), single=len(case.objects[order[position]]) != 4)
            snapshots.append(results if isinstance(results, str) else [c.clone() for c in results])

    data = [case.handed[i] for i in order]
    returned, ns = device.run(kernel, data, clear_l2 if request["timed"] else None, snapshot)
    problems = guards.replaced()
    if torch._C._len_torch_function_stack() != modes:
        problems.append("the submission left a mode of torch entered")
    taken = inputs.Taken()
    for i in order:
        for t in case.tensors(case.objects[i]):
            taken.add(t.data_ptr(), any_data.extent(t.shape, t.stride(), t.element_size()), "an input")
    for position, i in enumerate(order):
        results = results_of(returned[position], case.outputs(i), single=len(case.objects[i]) != 4)
        wrong = results if isinstance(results, str) else elsewhere(results, taken, position)
        if isinstance(results, str) or wrong:
            problems.append(wrong or "")
            continue
        case.store(i, snapshots[position] if snapshots else results, copy)
        if case.changed(i, contents[i], disguises[i], equal):
            problems.append("the submission changed its inputs")
    return {"error": "; ".join(dict.fromkeys(problems)) or None, "ns": ns}
