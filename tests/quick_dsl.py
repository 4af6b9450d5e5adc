"""CuTe DSL 4.5 looks up the source of every operation that it builds, which is a third of a compile; 4.8 does not.

`inspect.getframeinfo` searches the file for the function that a line is in and throws the function away. What it
returns is made here without the search, equal in every field that the DSL reads: the PTX is the same, `.loc` included.
"""

import dis
import inspect
import linecache
from types import SimpleNamespace


def frame_info(frame) -> SimpleNamespace:
    """As inspect.getframeinfo(frame), of Python 3.11 and newer."""
    code, lineno = frame.f_code, frame.f_lineno
    line = linecache.getline(code.co_filename, lineno)
    positions = next(p for i, p in enumerate(code.co_positions()) if i == frame.f_lasti // 2)
    if positions[0] is None:
        positions = (lineno, None, None, None)
    return SimpleNamespace(
        filename=code.co_filename,
        lineno=lineno,
        function=code.co_name,
        code_context=[line] if line else None,
        positions=dis.Positions(*positions),
    )


def install() -> None:
    """In this process, where it helps."""
    try:
        from cutlass.base_dsl._mlir_helpers import op
    except ImportError:  # a newer DSL
        return
    if hasattr(dis, "Positions"):
        op.inspect = SimpleNamespace(getframeinfo=frame_info, currentframe=inspect.currentframe)
