"""Source lines for what CuTe DSL compiles, with the calls that lead there.

The DSL gives an operation the line of the user's code that called its API, or, if it was built by hand (inline PTX in a
plain Python helper), that of the decorated host function. Here every operation of a kernel gets all lines from the
kernel's body down to it. Neither MLIR nor NVVM keeps calls between functions that do not exist for them, so the calls
travel as numbers in the column of the location, which LLVM keeps in 16 bits, and become what PTX has for them, `.loc`
with `inlined_at` (PTX ISA 11.5.3), in the text that the emulator runs. No instruction differs.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from typing import Any

FIRST, LAST = 10_000, 65_535  # columns that are numbers of calls
ENTRY = "kernel_wrapper"  # the function of the DSL that calls the body of a kernel

Call = tuple[str, int, str]  # file, line, function


class Traced(threading.local):
    """What this thread has traced since its last compile: a kernel's numbers do not hang on those before it."""

    def __init__(self):
        self.forget()

    def forget(self) -> None:
        self.calls: list[tuple[Call, ...]] = []  # outermost first; number - FIRST is the index
        self.numbers: dict[tuple[Call, ...], int] = {}
        self.led: dict[Any, tuple[Call, ...] | None] = {}  # frames of the user's code, outermost first: what led there


_traced = Traced()
forget = _traced.forget  # what was compiled need not be kept alive, and the next kernel has numbers from the first on
_functions: set[str] = set()  # that are kernels' bodies
_files: dict[str, str] = {}  # by the names that stand for them
_LOC = re.compile(r"^([ \t]*\.loc[ \t]+)(\d+)[ \t]+(\d+)[ \t]+(\d+)[ \t]*$", re.MULTILINE)
_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"([^"]*)"', re.MULTILINE)


def calls(frame, library: str) -> tuple[Call, ...]:
    """The lines of the user's code from the body of a kernel to this frame; () where no kernel is being traced.

    library: where the DSL lies. A part of a function that the DSL calls back (the body of a loop) stands for all of it.
    """
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(library):
            if code.co_filename != __file__:
                break
        elif code.co_name == ENTRY:
            return ()
        frame = frame.f_back
    else:
        return ()
    outer = callers(frame, library)
    return () if outer is None else with_line(outer, frame)


def with_line(outer: tuple[Call, ...], frame) -> tuple[Call, ...]:
    """The lines that led to a frame, and its own: a comprehension is a call on the same line."""
    here = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
    return (*(outer[:-1] if outer and outer[-1][:2] == here[:2] else outer), here)


def callers(frame, library: str) -> tuple[Call, ...] | None:
    """The lines that led to this frame of the user's code, from the body of a kernel on; None if there is no kernel."""
    led = _traced.led
    if frame in led:  # while it runs, what has called it stays where it is
        while next(reversed(led)) is not frame:
            led.popitem()
        return led[frame]
    found: tuple[Call, ...] | None = None
    inner, called_back, outer = frame.f_code, False, frame.f_back
    while outer is not None:
        code = outer.f_code
        if code.co_filename.startswith(library):
            if code.co_name == ENTRY:
                found = ()
                break
            called_back = True
        elif code.co_filename != __file__:
            found = callers(outer, library)
            if found is not None and not (called_back and inner in code.co_consts):
                found = with_line(found, outer)
            break
        outer = outer.f_back
    led[frame] = found
    return found


def number_of(found: tuple[Call, ...]) -> int:
    """The column that stands for these calls; 0, which stands for none, if all are taken."""
    calls, numbers = _traced.calls, _traced.numbers
    if found not in numbers and FIRST + len(calls) <= LAST:
        numbers[found] = FIRST + len(calls)
        calls.append(found)
        _functions.add(found[0][2])
    return numbers.get(found, 0)


@functools.cache
def short(file: str) -> str:
    """What stands for a file: its name without folders, so that what is made of a kernel is found again elsewhere. Of
    two files of one name the later one's stays as it is."""
    name = os.path.basename(file)
    return name if _files.setdefault(name, file) == file else file


def function_of(kernel: str) -> str:
    """The Python function that a kernel was made of, of a method with its class; "" if it was traced elsewhere.

    CuTe DSL lengthens its name by the types of all arguments; that of `self` is `moduleClass_object_at`, where a class
    is taken to begin with the first capital.
    """
    name = max((name for name in _functions if f"kernel_cutlass_{name}_" in kernel), key=len, default="")
    owner = re.search(rf"kernel_cutlass_{name}_[a-z0-9_]*([A-Z]\w*?)_object_at_", kernel)
    return f"{owner[1]}.{name}" if name and owner else name


def install() -> None:
    """Patch the DSL: both of its versions build every operation by one of these two methods of OpView."""
    import cutlass
    from cutlass._mlir import ir

    library = os.path.dirname(os.path.abspath(cutlass.__file__))

    def located(build):
        @functools.wraps(build)
        def build_located(self, *args, **options):
            if "loc" in options and (found := calls(sys._getframe(1), library)):
                file, line, function = found[-1]
                place = ir.Location.file(file, line, number_of(found))
                options["loc"] = ir.Location.name(function, childLoc=place)
            return build(self, *args, **options)

        return build_located

    location = ir.Location.file
    ir.Location.file = lambda file, *place, **context: location(short(file), *place, **context)
    ir.OpView.__init__ = located(ir.OpView.__init__)
    if isinstance(generic := vars(ir.OpView).get("build_generic"), classmethod):
        build = located(lambda cls, *args, **options: generic.__get__(None, cls)(*args, **options))
        ir.OpView.build_generic = classmethod(build)


def resolved(text: str) -> str:
    """PTX with the calls in the place of their numbers, and files in that of their names."""
    calls = _traced.calls
    text = _FILE.sub(lambda match: match[0].replace(f'"{match[2]}"', f'"{_files.get(match[2], match[2])}"'), text)
    files = {name: int(number) for number, name in _FILE.findall(text)}
    functions: dict[str, str] = {}  # name -> its label in .debug_str

    def lines(match) -> str:
        start, file, line, column = match.groups()
        if not FIRST <= int(column) < FIRST + len(calls):
            return match[0]
        at, out = "", []
        for name, number, function in calls[int(column) - FIRST]:
            place = f"{files.setdefault(name, len(files) + 1)} {number} 0"
            label = functions.setdefault(function, f"$L__function{len(functions)}")
            out.append(f"{start}{place}" + (f", function_name {label}, inlined_at {at}" if at else ""))
            at = place
        return "\n".join(out)

    known = len(files)
    text = _LOC.sub(lines, text.rstrip("\0"))
    if functions:
        names = ((label, [*name.encode(), 0]) for name, label in functions.items())
        strings = "\n".join(f"{label}:\n.b8 {', '.join(map(str, name))}" for label, name in names)
        text += "".join(f'\n\t.file\t{number} "{name}"' for name, number in [*files.items()][known:])
        text += f"\n\t.section\t.debug_str\n\t{{\n{strings}\n\t}}\n"
    return text
