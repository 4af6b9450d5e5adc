"""`torch.distributed` for ranks that are threads of this process, or one alone: the store, and the backend "nccl".

A collective is carried out by the CPU when all ranks of its group have come to it. What it orders is what it must: who
gets data of another rank comes after what that one's device had done. https://docs.pytorch.org/docs/stable/distributed.html
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future, _set_thread_isolation_mode
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import _rendezvous_handlers

from ...device import DEVICE
from ...errors import Hang, Unsupported
from ...machine.node import learn

# What torch.distributed keeps of a process, by its names there.
KEPT = (
    "_world", "_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_group_count", "_tags_to_pg",
    "_pg_to_tag", "_backend", "_default_pg_init_method",
)  # fmt: skip
NCCL_VERSION = 2, 28, 9  # what a script is told
REDUCTIONS = {
    "SUM": lambda x: x.sum(0), "AVG": lambda x: x.sum(0) / len(x), "PRODUCT": lambda x: x.prod(0),
    "MIN": lambda x: x.amin(0), "MAX": lambda x: x.amax(0),
}  # fmt: skip


class Store(dist.Store):
    """Keeps what ranks set by name, for all of them; a rank that waits lets the others go on."""

    contents: dict[str, bytes] = {}

    def set(self, key: str, value) -> None:
        self.contents[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self.contents[key]

    def add(self, key: str, value: int) -> int:
        self.contents[key] = str(int(self.contents.get(key, b"0")) + value).encode()
        return int(self.contents[key])

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        there = self.contents.get(key)
        if there is None and not expected or there == expected.encode():
            self.set(key, desired)
        return self.contents.get(key, expected.encode())

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        missing = [key for key in keys if key not in self.contents]
        if missing:
            _, hosts = DEVICE.together()
            hosts.wait(lambda: all(key in self.contents for key in keys), f"{missing} in the store")

    def check(self, keys: list[str]) -> bool:
        return all(key in self.contents for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.contents.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self.contents)

    def set_timeout(self, timeout: timedelta) -> None:
        """Nobody waits in vain: that is a hang, which is found at once."""


def meeting(url: str, *_, **__) -> Iterator[tuple[Store, int, int]]:
    """torch's rendezvous of the ranks (env://, tcp://): (store, rank, how many there are)."""
    hosts = DEVICE.together()[1]
    yield Store(), hosts.now.rank, len(hosts.all)


class Options(types.SimpleNamespace):
    """ProcessGroupNCCL.Options: here only who belongs to the group matters, and its name."""

    def __init__(self, is_high_priority_stream: bool = False):
        super().__init__(is_high_priority_stream=is_high_priority_stream, config=types.SimpleNamespace())
        self.group_name, self.global_ranks_in_group = "", list[int]()


class ProcessGroupNCCL(dist.ProcessGroup):
    """The ranks of one group. Collectives take tensors of the device and of the host."""

    Options = Options

    def __init__(self, store, rank: int, size: int, options: types.SimpleNamespace):
        super().__init__(rank, size)
        self._rank, self._size, self.options = rank, size, options

    @property
    def _ranks(self) -> tuple[int, ...]:
        return tuple(self.options.global_ranks_in_group) or tuple(range(self._size))

    # -- what torch asks of a group ----------------------------------------------------------------------------
    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "nccl"

    getBackendName = name  # noqa: N815

    @property
    def group_name(self) -> str:
        return self.options.group_name

    pg_name = group_name

    supports_splitting = False

    def _get_backend(self, device) -> ProcessGroupNCCL:
        return self

    def _set_sequence_number_for_group(self) -> None:
        pass

    # -- collectives -------------------------------------------------------------------------------------------
    def _begin(self, what: str, tensors) -> None:
        """Wait for the devices of the tensors."""
        if DEVICE.capture is not None:
            raise Unsupported(f"{what} inside the capture of a CUDA graph on the emulated device")
        for index in {DEVICE.index} | {tensor.get_device() for tensor in tensors if tensor.is_cuda}:
            DEVICE.synchronize(index, host=False)

    def _exchange(self, what: str, tensors: list[torch.Tensor], sources=None) -> list[list[torch.Tensor]]:
        """Return copies of the tensors of each rank. sources: of whom this one needs something, if not of all."""
        self._begin(what, tensors)
        (node, hosts), device = DEVICE.together(), DEVICE.index
        host = hosts.now
        brought = _copies(tensors), node.clocks_of(device), dict(host.known)
        all_ = hosts.exchange(self._ranks, what, brought)
        for source in range(self._size) if sources is None else sources:
            _, clocks, known = all_[source]
            node.learn(device, clocks)
            learn(host.known, known)
        return [each[0] for each in all_]

    def allreduce(self, tensors, opts):
        all_ = self._exchange("all_reduce", tensors)
        for k, tensor in enumerate(tensors):
            _put(tensor, _reduced([each[k] for each in all_], opts.reduceOp))
        return _done(tensors)

    def reduce(self, tensors, opts):
        mine = opts.rootRank == self._rank
        all_ = self._exchange("reduce", tensors, None if mine else [])
        if mine:
            _put(tensors[0], _reduced([each[0] for each in all_], opts.reduceOp))
        return _done(tensors)

    def broadcast(self, tensors, opts):
        all_ = self._exchange("broadcast", tensors, [opts.rootRank])
        for tensor, value in zip(tensors, all_[opts.rootRank], strict=True):
            _put(tensor, value)
        return _done(tensors)

    def allgather(self, outputs, inputs, opts=None):
        for output, (value,) in zip(outputs[0], self._exchange("all_gather", inputs), strict=True):
            _put(output, value)
        return _done(outputs)

    def all_gather_single(self, output, value, opts=None):
        all_ = self._exchange("all_gather_into_tensor", [value])
        _put(output, torch.cat([each[0].reshape(-1) for each in all_]).view(output.shape))
        return _done([output])

    def gather(self, outputs, inputs, opts):
        mine = opts.rootRank == self._rank
        all_ = self._exchange("gather", inputs, None if mine else [])
        for output, (value,) in zip(outputs[0], all_, strict=True) if mine else ():
            _put(output, value)
        return _done(outputs)

    def scatter(self, outputs, inputs, opts):
        all_ = self._exchange("scatter", list(inputs[0]) if inputs else [], [opts.rootRank])
        _put(outputs[0], all_[opts.rootRank][self._rank])
        return _done(outputs)

    def reduce_scatter(self, outputs, inputs, opts):
        all_ = self._exchange("reduce_scatter", list(inputs[0]))
        _put(outputs[0], _reduced([each[self._rank] for each in all_], opts.reduceOp))
        return _done(outputs)

    def reduce_scatter_single(self, output, value, opts):
        all_ = self._exchange("reduce_scatter_tensor", [value])
        parts = [each[0].reshape(self._size, -1)[self._rank] for each in all_]
        _put(output, _reduced(parts, opts.reduceOp).view(output.shape))
        return _done([output])

    def alltoall(self, outputs, inputs, opts=None):
        all_ = self._exchange("all_to_all", list(inputs))
        for output, each in zip(outputs, all_, strict=True):
            _put(output, each[self._rank])
        return _done(outputs)

    def all_to_all_single(self, output, value, output_sizes, input_sizes, opts=None):
        sizes = list(input_sizes) or [len(value) // self._size] * self._size
        parts = list(value.split(sizes))
        all_ = self._exchange("all_to_all_single", parts)
        wanted = list(output_sizes) or [len(output) // self._size] * self._size
        for source, (part, each) in enumerate(zip(output.split(wanted), all_, strict=True)):
            if part.shape != each[self._rank].shape:
                there = f"{len(each[self._rank])} rows for rank {self._rank}, which expects {len(part)}"
                raise ValueError(f"all_to_all_single: rank {source} has {there}")
            _put(part, each[self._rank])
        return _done([output])

    def barrier(self, opts=None):
        DEVICE.synchronize()
        self._exchange("barrier", [])
        return _done([])

    # -- several at once, which torch's functional collectives (DTensor, FSDP) ask for
    def allreduce_coalesced(self, tensors, opts=None):
        return self.allreduce(tensors, opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        for output, value in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, value, opts)
        return _done(outputs)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        for output, value in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, value, opts)
        return _done(outputs)

    # Their names in torch 2.11 and before
    _allgather_base, _reduce_scatter_base, alltoall_base = all_gather_single, reduce_scatter_single, all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- from one rank to another ------------------------------------------------------------------------------
    def send(self, tensors, target: int, tag: int):
        """Leave a copy for a rank of the group, which need not ask for it yet, as little as the stream need wait."""
        self._begin("send", tensors)
        node, hosts = DEVICE.together()
        copies, clocks = _copies(tensors), node.clocks_of(DEVICE.index)
        _sent.setdefault((self._ranks, self._rank, target), []).append((copies, clocks, dict(hosts.now.known)))
        return _done(tensors)

    def recv(self, tensors, source: int, tag: int):
        """Return work that writes what a rank of the group has sent, the oldest of it, when it is waited for."""
        self._begin("recv", tensors)
        return Receipt(functools.partial(self._receive, tensors, source))

    def recv_anysource(self, *_):
        raise Unsupported("torch.distributed.recv from any rank on the emulated device: name the rank")

    def _receive(self, tensors, source: int) -> None:
        node, hosts = DEVICE.together()
        there = _sent.setdefault((self._ranks, source, self._rank), [])
        hosts.wait(lambda: bool(there), f"what rank {self._ranks[source]} sends")
        values, clocks, known = there.pop(0)
        node.learn(DEVICE.index, clocks)
        learn(hosts.now.known, known)
        for tensor, value in zip(tensors, values, strict=True):
            _put(tensor, value)


class Receipt(dist.Work):
    """Work that is done when somebody waits for it."""

    def __init__(self, receive: Callable[[], None]):
        super().__init__()
        self.receive: Callable[[], None] | None = receive

    def wait(self, timeout: timedelta | None = None) -> bool:
        receive, self.receive = self.receive, None
        if receive is not None:
            receive()
        return True


_sent: dict[tuple, list[tuple]] = {}  # and not received, the oldest first: by group, sender and receiver


def unreceived() -> Hang | None:
    """Return what is wrong behind the end of all ranks, if somebody has sent what nobody has received."""
    for (group, source, target), letters in _sent.items():
        if letters:
            times = f", {len(letters)} times" if len(letters) > 1 else ""
            return Hang(f"rank {group[source]} sends to rank {group[target]} what that one never receives{times}")
    return None


def _copies(tensors) -> list[torch.Tensor]:
    """Return what tensors hold now, in the host's memory."""
    return [tensor.detach().cpu() if tensor.is_cuda else tensor.detach().clone() for tensor in tensors]


def _reduced(values: list[torch.Tensor], op) -> torch.Tensor:
    """One tensor of those of all ranks: summed in the order of ranks, as floats of 32 bits if they are shorter."""
    name = str(op.op if hasattr(op, "op") else op).rpartition(".")[2]
    if name not in REDUCTIONS:
        raise Unsupported(f"a reduction by {name} on the emulated device")
    stacked = torch.stack(values)
    short = stacked.is_floating_point() and stacked.element_size() < 4
    return REDUCTIONS[name](stacked.float() if short else stacked).to(stacked.dtype)


def _put(output: torch.Tensor, value: torch.Tensor) -> None:
    """Write what has come into a tensor of this rank."""
    if output.shape != value.shape:
        raise ValueError(f"a collective brings {tuple(value.shape)} where {tuple(output.shape)} is expected")
    output.detach().copy_(value)


def _done(result):
    """The handle of work that is complete."""
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


class ProcessGroupGloo(ProcessGroupNCCL):
    """The same among threads. torch sets its options later."""

    def __init__(self, store, rank: int, size: int, timeout=None):
        super().__init__(store, rank, size, Options())


class Alone(ProcessGroupNCCL):
    """The group of a process that is the only one: a collective gives it what it has brought."""

    def __init__(self, store, rank: int, size: int, options: types.SimpleNamespace):
        if size > 1:
            raise Unsupported(f"nccl among processes on the emulated device: `run --devices {size}` has {size} ranks")
        super().__init__(store, rank, size, options)

    def _exchange(self, what: str, tensors: list[torch.Tensor], sources=None) -> list[list[torch.Tensor]]:
        self._begin(what, tensors)
        return [_copies(tensors)]


def fresh() -> dict:
    """Return what torch.distributed has of a process in which nothing was initialised."""
    empty = {name: type(value)() for name, value in ((name, getattr(c10d, name)) for name in KEPT) if value is not None}
    return dict.fromkeys(KEPT) | empty


def kept() -> dict:
    """Return what torch.distributed has of this rank, to be put back by `put_back`."""
    return {name: getattr(c10d, name) for name in KEPT}


def put_back(state: dict) -> None:
    for name, value in state.items():
        setattr(c10d, name, value)


def offer(nccl: type[ProcessGroupNCCL]) -> None:
    """Make "nccl" a backend of torch.distributed."""
    for module in c10d, dist:
        vars(module)["ProcessGroupNCCL"] = nccl
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    torch.cuda.nccl.version = lambda: NCCL_VERSION
    c10d.is_nccl_available = dist.is_nccl_available = lambda: True


def install() -> None:
    """Make "nccl" and "gloo" backends that ranks in this process have."""
    Store.contents = {}
    _sent.clear()
    _set_thread_isolation_mode(True)
    os.environ["TORCH_FAKE_TENSOR_DISPATCH_CACHE"] = "0"  # it keeps devices of the rank that comes first
    offer(ProcessGroupNCCL)
    for module in c10d, dist:
        vars(module)["ProcessGroupGloo"] = ProcessGroupGloo
    for scheme in ("env", "tcp"):
        _rendezvous_handlers[scheme] = meeting
