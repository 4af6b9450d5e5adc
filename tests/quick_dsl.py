"""Compiles in less time, to the same PTX, line info included: for tests that are not about how long that takes.

CuTe DSL hashes all of its own files, 300 MB, in each process, for the key of a cache. And 4.5 looks up the source of
every operation that it builds, a third of a compile: `inspect.getframeinfo` searches the file for the function that a
line is in, and throws the function away. 4.8 does without that search. Both ask of every frame whether its file is the
DSL's own, and what a type is by what its constructor raises; and where each value is used, of which nothing is built.
"""

import dis
import functools
import gc
import hashlib
import inspect
import itertools
import linecache
from types import SimpleNamespace

_infos: dict[tuple[int, int], tuple] = {}  # by a code object, whose own hash takes long, and an offset in it


def frame_info(frame) -> SimpleNamespace:
    """As inspect.getframeinfo(frame) of Python 3.11 and newer, in what the DSL reads."""
    code, offset = frame.f_code, frame.f_lasti
    _, info = _infos.get((id(code), offset), (None, None))
    if info is None:
        line = linecache.getline(code.co_filename, frame.f_lineno)
        info = SimpleNamespace(
            filename=code.co_filename,
            lineno=frame.f_lineno,
            function=code.co_name,
            code_context=[line] if line else None,
            positions=dis.Positions(*next(itertools.islice(code.co_positions(), offset // 2, None))),
        )
        _infos[id(code), offset] = code, info  # which keeps it
    return info


def collect_garbage_rarely() -> None:
    """In this process: looking through what a compile made, hardly any of it in cycles, is 3 % of its time."""
    gc.set_threshold(100_000, 50, 50)


def install() -> None:
    """In this process, once CuTe DSL may be imported. All that is there then is looked through for garbage no more."""
    from cutlass._mlir.dialects import arith
    from cutlass.cutlass_dsl import CuTeDSL

    version = hashlib.sha256(b"the one of this environment")
    CuTeDSL.get_version = lambda self: version
    arith._isa = lambda x, kind: kind.isinstance(x)
    gc.freeze()
    try:
        from cutlass.base_dsl._mlir_helpers import op
        from cutlass.base_dsl._mlir_helpers.arith import ArithValue
    except ImportError:  # a newer DSL
        return
    op._is_framework_frame = functools.cache(op._is_framework_frame)
    looks_up = ArithValue.__init__

    @functools.wraps(looks_up)
    def init(self, v, signed=None, **options):
        """Of a value nothing is built, so that nobody reads where that is."""
        made = looks_up if isinstance(v, int) else looks_up.__wrapped__
        return made(self, v, signed, **options)

    ArithValue.__init__ = init
    if hasattr(dis, "Positions"):
        op.inspect = SimpleNamespace(getframeinfo=frame_info, currentframe=inspect.currentframe)
