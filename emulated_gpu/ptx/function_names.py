"""Names of functions as their source has them."""

import ctypes
import functools

LONGEST = 60  # characters of a name in a report


@functools.cache
def _demangle():
    """Return the C++ runtime's own function, and the one that frees what it returns; None without that library."""
    try:
        function = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    return function, free


@functools.cache
def readable(name: str) -> str:
    """Return the name of a C++ function without result and parameters, a long one without arguments of its template
    either; any other name as it is, as far as it is short."""
    found = _demangle() if name.startswith("_Z") else None
    status = ctypes.c_int()
    if found and (text := found[0](name.encode(), None, None, ctypes.byref(status))):
        name = _base(ctypes.string_at(text).decode())
        found[1](text)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def _base(text: str) -> str:
    """Cut a declaration to its name: `void scale<int, 4>(int*, int)` to `scale<int, 4>`."""
    text = text.replace("(anonymous namespace)", "{anonymous}")
    depth, begin, end, template = 0, 0, len(text), len(text)
    for at, letter in enumerate(text):
        if depth == 0:
            if letter == "(":
                end = at
                break
            if letter == " ":
                begin = at + 1
            if letter == "<":
                template = at
        depth += (letter in "<({") - (letter in ">)}")
    return text[begin:end] if end - begin <= LONGEST else f"{text[begin : min(template, end)]}<...>"
