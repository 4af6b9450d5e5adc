"""A call goes once through five steps (`Function`): check, plan, allocate, launch, record. One that is like an earlier
one repeats that one's launches, when its operands have been compared with that one's.

What a call checks, chooses and computes on the host depends on its operands' types, shapes and strides, and on its
other arguments, but not on where operands lie. So its launches are noted (kernels.program.Tape), and the next call of
the kind writes its addresses to them. Notes belong to an arena of scratch memory, whose addresses are in them.
"""

import functools
import marshal
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from ragged_moe.kernels.program import Recorded, Tape
from ragged_moe.runtime.device import Device
from ragged_moe.runtime.dispatch import below_autograd, is_eager, keys_of, modes, require_no_tracer
from ragged_moe.runtime.gradients import any_requires_grad, learns, refusing
from ragged_moe.runtime.operands import extent
from ragged_moe.runtime.signature import Signature
from ragged_moe.runtime.workspace import Arena, arena_of

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # torch's own, which a version may be without
    TensorGuards = None

MOST = 1024  # kinds of calls that a function knows at a time, and that an arena has launches of
KIND = operator.attrgetter("dtype", "shape", "device")
ADDRESS = torch.Tensor.data_ptr  # of torch's extension: `map` calls it without a frame of Python


class Call:
    """A kind of call, by an example of its operands, which have been checked.

    aligned: which of them begin at multiples of this many bytes. apart: with which of them the last one, which is
    written, shares no memory. results: how many of the last ones are results, which `makers` make anew.
    """

    def __init__(
        self, gpu: Device, operands: Sequence[torch.Tensor], aligned: Sequence[int], multiple: int = 16,
        apart: Iterable[int] = (), results: int = 1,
    ):  # fmt: skip
        self.gpu, self.aligned, self.multiple, self.torch_device = gpu, aligned, multiple, operands[0].device
        self.kinds, self.strides = list(map(KIND, operands)), [x.stride() for x in operands]
        sizes = [extent(x)[1] for x in operands]
        self.apart, self.written = [(i, -sizes[i]) for i in apart if sizes[i]], sizes[-1]
        self.alike, self.requires_grad = alike(operands), any_requires_grad(*operands)
        self.makers = [gpu.maker(x.shape, x.dtype, x.device) for x in operands[-results:]]

    def is_like(self, other: "Call") -> bool:
        """Whether both have noted the same of their examples."""
        functions = dict.fromkeys(("alike", "makers"))
        return vars(self) | functions == vars(other) | functions

    def fits(self, operands: Sequence[torch.Tensor], found: Sequence[int]) -> bool:
        """Whether operands like the example's may begin here. If not, or out of reach, it is to be complained of."""
        for i in self.aligned:
            if found[i] % self.multiple:
                return False
        out, most = found[-1], self.written
        for i, least in self.apart:
            if least < found[i] - out < most:
                return False
        return self.gpu.reaches(operands, found)

    def repeat(self, operands: Sequence[torch.Tensor]) -> bool:
        """Launch with other operands what has been noted; False if that cannot be, and nothing was launched."""
        try:
            if not self.alike(*operands) or self.requires_grad and torch.is_grad_enabled():
                return False
            found = tuple(map(ADDRESS, operands))
        except (AttributeError, RuntimeError, TypeError):  # no tensor, or one without memory
            return False
        if not self.gpu.is_current():
            return False
        arena = arena_of(self.torch_device, self.gpu)
        with arena.lock:
            tape = arena.tapes.get(self)
            if tape is None:
                return False
            graph = tape.graphs.get(found)
            if graph is not None:  # which was made of operands that fitted
                graph()
            elif not self.fits(operands, found):
                return False
            elif self.gpu.has_graphs and not arena.capture:
                tape.often(found, arena.stream)
            else:
                tape(found)
        return True

    def note(self, arena: Arena, operands: Sequence[torch.Tensor], launch: Callable[..., None]) -> None:
        """Launch for the first time; `launch` gets the operands. Nothing is noted if it does not launch with each."""
        tape = Tape()
        with tape.record():
            launch(*(Recorded(x, slot) for slot, x in enumerate(operands)))
        if tape.has(len(operands)):
            if len(arena.tapes) >= MOST:
                arena.tapes.clear()
            arena.tapes[self] = tape


def alike(examples: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return what says whether tensors are like these examples to a kernel: types, shapes, strides and devices."""
    if TensorGuards is not None:  # what Dynamo guards a compiled graph's inputs by, in 0.1 us an operand
        return TensorGuards(*examples, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    known, keys = [kind_of(x) for x in examples], keys_of(*examples)
    return lambda *operands: [kind_of(x) for x in operands] == known and keys_of(*operands) == keys


def kind_of(x: torch.Tensor) -> tuple:
    """What two tensors must have in common to be alike; AttributeError for what is no tensor."""
    return type(x), *KIND(x), x.stride(), x.requires_grad


class Calls:
    """The kinds of calls of a function, by what tells most of them apart: two sizes, and the other arguments."""

    def __init__(self):
        self.known: dict[Hashable, Call] = {}

    def like(self, operands: Sequence[torch.Tensor], options: tuple) -> Call | None:
        """A call that may have had such operands and these options; None in a mode of torch, which is to see all."""
        try:
            return None if modes() else self.known.get(key_of(operands, options))
        except (AttributeError, TypeError):  # no tensor, or an option that cannot be hashed: to be complained of
            return None

    def add(self, operands: Sequence[torch.Tensor], options: tuple, call: Call) -> Call:
        """Add a call, in place of an earlier one of the same key. Returns that, with its notes, if it is like this."""
        key = key_of(operands, options)
        found = self.known.get(key)
        if found is not None and found.is_like(call):
            found.alike = call.alike  # in inference mode tensors are of another kind to torch, not to kernels
            return found
        if len(self.known) >= MOST:
            self.known.clear()
        self.known[key] = call
        return call


class Checked(NamedTuple):
    """A call's arguments, which are as they must be. given: operands by name, None for one that was not given."""

    gpu: Device
    signature: Signature
    given: dict[str, torch.Tensor | None]
    letters: dict[str, int]  # sizes
    options: dict[str, object]

    @property
    def first(self) -> torch.Tensor:
        """The operand that says where all are."""
        return self.given[self.signature.first]


class Function(ABC):
    """What is particular to a function in the five steps of its calls. A call is made once, then noted and repeated."""

    def __init__(self, name: str):
        self.name, self.calls = name, Calls()

    def operator(self, given: Mapping[str, torch.Tensor | None], options: Mapping, out: torch.Tensor | None = None):
        """Make the call by torch's operator, for whoever traces it. Returns its result, or results."""
        if out is None:
            return getattr(torch.ops.ragged_moe, self.name)(**given, **options)
        getattr(torch.ops.ragged_moe, self.name + "_out")(out, **given, **options)
        return out

    @abstractmethod
    def check(self, given: dict[str, torch.Tensor | None], options: dict[str, object]) -> Checked:
        """Step 1. ValueError for the first argument that is not as it must be; nothing has been touched."""

    @abstractmethod
    def plan(self, checked: Checked):
        """Step 2. Choose, and compile, what is launched. ValueError if there are no such kernels."""

    def allocate(
        self, checked: Checked, plan, out: torch.Tensor | None, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        """Step 3. The results' tensors: `out` if it is given, else new ones. ValueError for a wrong workspace."""
        if out is None:
            outs = checked.gpu.tensors(*checked.signature.made(checked.letters, checked.first.device))
        else:
            outs = (out,)
        if workspace is not None:
            touched = checked.given | dict(zip((checked.signature.out,), outs))
            least = plan.workspace_bytes(checked.letters["T"])
            checked.signature.check_workspace(checked.gpu, workspace, least, touched)
        return outs

    @abstractmethod
    def launch(self, plan, checked: Checked, operands: Mapping, outs: Sequence, arena: Arena, workspace) -> None:
        """Step 4. Launch with operands by name, and results: tensors, or what stands for them while this is noted."""

    def is_noted(self, _checked: Checked) -> bool:
        """Whether the launches are all that a call does, so that they can be repeated."""
        return True

    def first(
        self, given: dict[str, torch.Tensor | None], options: dict[str, object], key: tuple, out: torch.Tensor | None,
        workspace: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """Make a call that is like none before, and note it under these options (`key`). Returns its results.

        Of operands that require gradients no call is like one before, unless torch records none. Where something is
        between autograd and the kernels, as a tracer, the call goes by torch's operator, if there is one, and is not
        noted: so what is repeated was eager, and is, as it has the same dispatch keys.
        """
        operands = *given.values(), out
        if learns(*operands):
            call = functools.partial(self.first, given, options, key, out, workspace)
            return refusing(f"ragged_moe.{self.name}", call, operands, out)
        if not is_eager(keys_of(*operands)) and hasattr(torch.ops.ragged_moe, self.name):  # which has no workspace
            with below_autograd():
                made = self.operator(given, options, out)
            return made if isinstance(made, tuple) else (made,)
        require_no_tracer(f"ragged_moe.{self.name}")
        checked = self.check(given, options)
        if out is not None or not checked.signature.makes_results:
            checked.signature.check_out(checked.gpu, out, checked.letters, given)
        plan = self.plan(checked)
        outs = self.allocate(checked, plan, out, workspace)
        if not checked.gpu.is_current():
            name = checked.signature.first
            raise ValueError(f"{name} is on {checked.first.device}, but must be on torch's current device")
        if not all(x.numel() for x in outs):
            return outs
        arena = arena_of(checked.first.device, checked.gpu)
        with arena.lock:
            if workspace is not None or not self.is_noted(checked):
                self.launch(plan, checked, given, outs, arena, workspace)
            else:
                self.record(plan, checked, outs, arena, key)
        return outs

    def record(self, plan, checked: Checked, outs: Sequence[torch.Tensor], arena: Arena, key: tuple) -> None:
        """Step 5, around step 4: launch, and note that for calls like this."""
        there = {name: x for name, x in checked.given.items() if x is not None}
        declared = {x.name: x for x in checked.signature.tensors}
        aligned = [i for i, name in enumerate(there) if declared[name].aligned]
        has_out, operands = checked.signature.out != "", (*there.values(), *outs)
        apart = [i for i, name in enumerate(there) if has_out and name != checked.signature.overwritable]
        aligned, multiple = (*aligned, -1) if has_out else aligned, checked.signature.multiple
        made = Call(checked.gpu, operands, aligned, multiple, apart, len(outs))
        nothing = dict.fromkeys(checked.given)

        def launch(*recorded: Recorded) -> None:
            self.launch(plan, checked, nothing | dict(zip(there, recorded)), recorded[len(there) :], arena, None)

        self.calls.add(tuple(there.values()), key, made).note(arena, operands, launch)


def key_of(operands: Sequence[torch.Tensor], options: tuple) -> Hashable:
    """Return the key by which a call is known again. marshal tells True from 1 and 1 from 1.0, sooner than types do."""
    first = operands[0]
    try:
        said = marshal.dumps(options, 2)  # later versions write an object otherwise if it is there twice
    except ValueError:  # an option of another type, as a fraction
        said = options, *map(type, options)
    return first.get_device(), first.numel(), operands[-1].numel(), len(operands), said
