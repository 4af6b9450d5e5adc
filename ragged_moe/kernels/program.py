"""`Program`: a kernel compiled once, or loaded from the disk, and launched often; arguments are words of the host.
`Tape`: the launches of one call, to launch them again with other operands and nothing else to do.
"""

import contextlib
import ctypes
import struct
import threading
import weakref
from collections.abc import Iterator, Sequence

import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.runtime import make_ptr

from ragged_moe.kernels import disk_cache
from ragged_moe.kernels.graph import Graph
from ragged_moe.runtime.device import Stream

OFTEN = 16  # launches of one kind at the same addresses, after which a graph would have paid for its making
MOST_GRAPHS = 256  # of a kind of call: for as many layers, each with tensors of its own
MOST_GRAPHS_OF_ALL = 2048  # kinds, of which a server has one for each number of tokens; a graph has 0.1 MiB on the GPU


class Program:
    """A compiled kernel; calling it with its words launches it on the current GPU.

    host: its `__call__` is a @cute.jit function of a pointer to `words` 64-bit words. variant: tells it from all others
    of its class. RuntimeError if a launch fails.
    """

    def __init__(self, host, words: int, variant: str):
        self.lock = threading.Lock()  # held from writing the words to the end of the launch
        self.words, self.struct = (ctypes.c_int64 * words)(), struct.Struct(f"{words}q")
        self.compiled = compiled(host, variant, pointer_to(self.words))
        self.launch = Launch(self.compiled, self.words)

    def __call__(self, *words: int) -> None:
        with self.lock:
            self.struct.pack_into(self.words, 0, *words)
            self.launch()
        tape = getattr(recording, "tape", None)
        if tape is not None:
            tape.add(self.compiled, words)


class Launch:
    """Launches a compiled kernel with the words that are in an array then. RuntimeError if that fails."""

    def __init__(self, function, words: ctypes.Array):
        pointer = pointer_to(words)
        executor = function.to()
        arguments, _ = executor.generate_execution_args(pointer)
        array = executor._get_invoke_packed_args(arguments)
        self.keep = executor, arguments, array, pointer, words
        self.function, self.packed, self.result = executor.capi_func, ctypes.addressof(array), executor.cuda_result

    def __call__(self) -> None:
        self.function(self.packed)
        if self.result.value:
            raise RuntimeError(f"launch failed with CUDA error {self.result.value}")


recording = threading.local()  # .tape: where this thread's launches are noted


class Address(int):
    """Where a call's operand begins. slot: which operand it is."""

    slot: int


class Recorded:
    """An operand of a call that is recorded: the tensor, but that its address says which operand it is of."""

    def __init__(self, tensor, slot: int):
        self.tensor, self.slot = tensor, slot

    def data_ptr(self) -> Address:
        address = Address(self.tensor.data_ptr())
        address.slot = self.slot
        return address

    def of(self, view) -> "Recorded":
        """Another tensor that begins where the operand does."""
        return Recorded(view, self.slot)

    def __getattr__(self, name: str):
        return getattr(self.tensor, name)


class Tape:
    """The launches of a call. Words that are an Address are written anew each time, all others stay."""

    def __init__(self):
        self.launches: list[Launch] = []
        self.changing: list[tuple[ctypes.Array, int, int]] = []  # words, index, slot
        self.streams: list[tuple[ctypes.Array, int]] = []
        self.seen: dict[tuple[int, ...], int] = {}  # calls at these addresses
        self.graphs: dict[tuple[int, ...], Graph] = {}

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """This thread's launches inside."""
        recording.tape = self
        try:
            yield
        finally:
            recording.tape = None

    def add(self, function, words: Sequence[int]) -> None:
        """A launch that has been made."""
        own = (ctypes.c_int64 * len(words))(*words)
        self.launches.append(Launch(function, own))
        self.changing += [(own, i, word.slot) for i, word in enumerate(words) if type(word) is Address]
        self.streams += [(own, i) for i, word in enumerate(words) if type(word) is Stream]

    def has(self, slots: int) -> bool:
        """Whether the launches read, or write, this many operands: all of them, if none was left out on the way."""
        return {slot for _, _, slot in self.changing} == set(range(slots))

    def __call__(self, addresses: Sequence[int]) -> None:
        """Launch with operands at these addresses. Whoever does that holds the lock of the tape's arena."""
        for words, i, slot in self.changing:
            words[i] = addresses[slot]
        for launch in self.launches:
            launch()

    def often(self, at: tuple[int, ...], stream: int) -> None:
        """As a call; where there often were operands at these addresses, as in decoding, by a CUDA graph from now on.

        stream: the one that was recorded, on which nothing is being captured.
        """
        times = self.seen.get(at, 0)
        if times < OFTEN:
            if len(self.seen) >= MOST_GRAPHS:
                self.seen.clear()
            self.seen[at] = times + 1
            self(at)
            return
        if len(self.graphs) >= MOST_GRAPHS:
            self.drop(next(iter(self.graphs)))
        graph = self.graphs[at] = Graph(lambda side: self.on(side, at), stream)
        keep(self, at)
        graph()

    def drop(self, at: tuple[int, ...]) -> None:
        """Forget the graph of these addresses, which may become one again if it is called often."""
        self.graphs.pop(at, None)
        self.seen.pop(at, None)

    def on(self, stream: int, addresses: Sequence[int]) -> None:
        """As a call, on another stream than was recorded."""
        recorded = [words[i] for words, i in self.streams]
        try:
            for words, i in self.streams:
                words[i] = stream
            self(addresses)
        finally:
            for (words, i), before in zip(self.streams, recorded):
                words[i] = before


kept: list[tuple[weakref.ref[Tape], tuple[int, ...]]] = []  # graphs of all tapes, the oldest first
keeping = threading.Lock()


def keep(tape: Tape, at: tuple[int, ...]) -> None:
    """Count a graph that a tape has made; the oldest of all tapes' are forgotten where there are too many."""
    with keeping:
        kept.append((weakref.ref(tape), at))
        if len(kept) > MOST_GRAPHS_OF_ALL:
            kept[:] = [(of, at) for of, at in kept if (found := of()) is not None and at in found.graphs]
            for of, at in kept[:-MOST_GRAPHS_OF_ALL]:
                if (found := of()) is not None:
                    found.drop(at)
            del kept[:-MOST_GRAPHS_OF_ALL]


def pointer_to(words: ctypes.Array) -> cute.Pointer:
    """The pointer that a compiled kernel takes."""
    return make_ptr(Int64, ctypes.addressof(words), cute.AddressSpace.generic)


def compiled(host, variant: str, pointer: cute.Pointer):
    """The host function, compiled for this pointer's type."""
    if not disk_cache.is_on():
        return cute.compile(host, pointer)
    name = disk_cache.key(host, variant)
    found = disk_cache.load(name)
    if found is None:
        found = cute.compile(host, pointer)
        disk_cache.store(name, found)
    return found


def float_bits(x: float) -> int:
    """Return a word whose lower half has the bits of x as f32."""
    return struct.unpack("I", struct.pack("f", x))[0]
