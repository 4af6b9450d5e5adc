"""How a submission is called: by which of its functions, and on what of a call's data.

An entry is told as JSON, its kind first, to the submission's process, which makes a function of a call's data of it.
"""

import inspect
from collections.abc import Callable

import torch

from evaluation.tasks.ranks import together

KERNEL = ("kernel", "custom_kernel")
WEIGHTS = 42  # the seed of a model's weights: the author's and the entrant's draw the same


def entry(module, told) -> Callable:
    """Makes the function of a call's data. Raises AttributeError where a submission lacks what it needs, and TypeError
    where that cannot be called."""
    kind, *rest = told
    return KINDS[kind](module, *rest)


def named(module, name: str) -> Callable:
    """Finds what a submission has to define."""
    if not callable(found := getattr(module, name)):
        raise TypeError(f"{name} of the submission is {found!r:.40}, no function")
    return found


def in_turn(module, functions) -> Callable:
    """Calls functions one after the other, each on this many of the first data: a tuple of what they return."""
    found = [(named(module, name), count) for name, count in functions]
    return lambda data: tuple(function(*data[:count]) for function, count in found)


def of_ranks(module, name: str) -> Callable:
    """Calls a function as several ranks, each on data of its own: a list of what they return."""
    function = named(module, name)
    return lambda data: together(len(data), lambda rank: function(data[rank]))


def model(module, name: str) -> Callable:
    """Calls a torch module on (what makes it, its inputs); it is made in the first call, with weights of a known
    seed."""
    kind = named(module, name)
    made: list[torch.nn.Module] = []

    def call(data):
        initial, given = data
        with torch.no_grad():
            if not made:
                torch.manual_seed(WEIGHTS)
                made.append(kind(*initial).cuda())
            return made[0](*given)

    return call


def into_outputs(module, name: str, inputs: int) -> Callable:
    """Calls a function on (inputs, outputs). One with more than `inputs` parameters writes into the outputs, which it
    is given, too; else it returns its own."""
    function = named(module, name)
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    writes = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)

    def call(data):
        given, outputs = data
        if writes <= inputs:
            return function(*given)
        function(*given, *outputs)
        return outputs

    return call


KINDS = {"kernel": named, "in turn": in_turn, "ranks": of_ranks, "model": model, "run": into_outputs}
