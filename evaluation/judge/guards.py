"""Finds what a submission has replaced of the evaluator and of what that uses: an early word with a clear reason.

Nothing that the judge concludes on the emulator rests on it.
"""

import json
import time
import types

import numpy as np
import torch

FOREIGN = (  # what the evaluator uses of other people's modules
    (torch, "equal allclose isclose isnan randn empty from_numpy load save"),
    (torch.Tensor, "clone copy_ fill_ view data_ptr cpu numpy __eq__ __ne__ __getitem__ __setitem__"),
    (torch.cuda, "Event synchronize"),
    (torch.cuda.Event, "__new__ record elapsed_time synchronize query wait"),
    (time, "perf_counter perf_counter_ns monotonic time time_ns"),
    (json, "dumps loads"),
    (np, "memmap asarray"),
    (np.memmap, "__setitem__ __getitem__"),
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
        self.taken = [(place, name, held(place, name)) for place, names in places for name in names]

    def replaced(self) -> list[str]:
        return [
            f"the submission replaced {getattr(place, '__name__', place)}.{name}"
            for place, name, original in self.taken
            if held(place, name) is not original
        ]


def held(place, name: str) -> object:
    """Looks a name up in a module or a class, not through descriptors: those make a new object at each look. None if
    it is not there."""
    of = place.__mro__ if isinstance(place, type) else (place,)
    return next((vars(one)[name] for one in of if name in vars(one)), None)
