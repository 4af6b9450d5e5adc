"""Modules and kernels of CUDA's driver by their handles: from PTX, and from machine code whose PTX is known.

Only PTX runs here. What compiles in this process tells of which PTX its machine code was made (`note`), so that the
code finds it again, in whatever file or library it went meanwhile; if that is exported to a file (`exported`), in later
processes, too.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import re
from dataclasses import dataclass, field

from ... import build_cache, target
from ...device import DEVICE, LoadedModule
from ...errors import LaunchRefused, Unsupported, WrongCall
from ...formats import cubin, elf, fatbin
from ...ptx.joined import joined

EXPORTED = "exported"  # in the cache folder: the PTX of machine code that was exported, by its digest
UNKNOWN = "machine code whose PTX is not known: only PTX runs here, and this process has compiled no such code, " \
          "nor has another one exported it by the emulator; if a cache has it, empty that cache"  # fmt: skip

ALLOWS = "cuFuncSetAttribute(..., CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, ...)"
# cudaError_t, which are CUresult
INVALID_VALUE, INVALID_IMAGE, NO_IMAGE, NOT_FOUND = 1, 200, 209, 500


@dataclass
class Kernel:
    """A kernel that the host can launch. dynamic_shared: bytes that it may have, above the default.

    block, shared, params: what the driver's oldest calls have set for a launch by cuLaunchGrid.
    """

    module: LoadedModule | None  # None: machine code whose PTX is not known
    name: str
    dynamic_shared: int = 0
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    params: bytearray = field(default_factory=bytearray)

    def loaded(self) -> LoadedModule:
        if self.module is None:
            raise Unsupported(UNKNOWN)
        return self.module

    def allow_shared(self, size: int, call: str) -> None:
        """Let launches have this much dynamic shared memory. Raises a Fault for more than a block can have."""
        most, static = DEVICE.chip.shared_per_cta, static_shared(self.module, self.name) if self.module else 0
        if not 0 <= size <= most - static:
            why = f"{call}: {size} bytes of shared memory; a block has at most {most}"
            raise LaunchRefused(why + f", of which this kernel has {static}" * bool(static), INVALID_VALUE)
        self.dynamic_shared = size

    def check_shared(self, dynamic: int, call: str = ALLOWS) -> None:
        """Raise a Fault for a launch with more dynamic shared memory than the call has allowed."""
        most, allowed = DEVICE.chip.shared_by_default, self.dynamic_shared
        if static_shared(self.loaded(), self.name) + dynamic > most and dynamic > allowed:
            why = f"{self.name} is launched with {dynamic} bytes of dynamic shared memory: above {most} in all it needs"
            raise LaunchRefused(f"{why} {call} first" + f", which has allowed {allowed}" * bool(allowed), INVALID_VALUE)


modules: dict[int, LoadedModule | None] = {}
kernels: dict[int, Kernel] = {}
_handles = itertools.count(1)
_texts: dict[bytes, str] = {}  # digest of machine code -> the PTX that it was made of


def static_shared(module: LoadedModule, name: str) -> int:
    """Return the bytes of shared memory that a kernel has of itself."""
    own = module.program(name).kernel.variables.values()
    return sum(v.size for v in (*module.shared.values(), *own) if v.space == "shared")


def resident(module: LoadedModule, name: str, threads: int, shared: int) -> int:
    """Return how many CTAs of a kernel an SM runs at once: by threads, by shared memory, of which `shared` bytes are
    dynamic, and by registers, where there is machine code; 0 if not even one. Raises WrongCall for less than one
    thread."""
    if threads < 1:
        raise WrongCall(f"the occupancy of blocks of {threads} threads")
    chip, shared = DEVICE.chip, shared + static_shared(module, name)
    registers = cubin.of_kernel(module.machine_code, name).get("registers", 0)
    if threads > chip.threads_per_cta or shared > chip.shared_per_cta:
        return 0
    return min(chip.rooms(shared, threads, registers).values())


def digest(machine_code: bytes) -> bytes:
    return hashlib.blake2b(machine_code, digest_size=16).digest()


def note_text(machine_code: bytes, text: str) -> None:
    """Remember the PTX that a cubin was made of."""
    _texts[digest(machine_code)] = text


def noting(get_cubin, get_size, get_ptx):
    """Return NVRTC's nvrtcGetCUBIN, which notes of which PTX the cubin was made. Given are functions of C."""

    def get_cubin_and_note(program, to):
        status, size = get_cubin(program, to), ctypes.c_size_t()
        if status == 0 and get_size(program, ctypes.byref(size)) == 0 and size.value > 1:
            text = ctypes.create_string_buffer(size.value)
            if get_ptx(program, text) == 0:
                note_text(ctypes.string_at(to, elf.size(ctypes.string_at(to, elf.HEADER))), text.value.decode())
        return status

    return get_cubin_and_note


def exported(machine_code: bytes) -> None:
    """Keep the PTX of a cubin for other processes, since its machine code has gone to a file."""
    name = digest(machine_code)
    if name in _texts:
        build_cache.keep(_texts[name].encode(), EXPORTED, f"{name.hex()}.ptx")


def known(machine_code: bytes) -> str | None:
    """Return the PTX of a cubin that this process has compiled, or that another has exported; None if neither has."""
    name = digest(machine_code)
    if name not in _texts and (file := build_cache.found(EXPORTED, f"{name.hex()}.ptx")) is not None:
        _texts[name] = file.read_text()
    return _texts.get(name)


def chosen(texts: list[str]) -> str:
    """Return the PTX for this machine, as a driver chooses it: of its own architecture, or of an older one.

    Raises a Fault if there is none.
    """
    best, newest, targets = None, -1.0, []
    for text in texts:
        named = re.search(r"^\s*\.target\s+(sm_\w+)", text, re.MULTILINE)
        if named is None:
            raise Unsupported("PTX without a .target")
        targets.append(named[1])
        number, suffix = target.parts(named[1])
        if target.runs_on(named[1], DEVICE.chip) and number + bool(suffix) / 2 > newest:
            best, newest = text, number + bool(suffix) / 2
    if best is None:
        raise LaunchRefused(f"the kernels are compiled for {', '.join(targets)}, not for {DEVICE.chip.arch}", NO_IMAGE)
    return best


def text_of(image: bytes | int) -> tuple[str | None, bytes | None]:
    """Return (PTX, machine code) of an image: PTX, a cubin or a fat binary, itself or where it lies.

    The PTX is None for machine code of which it is not known.
    """
    held = ctypes.create_string_buffer(image) if isinstance(image, bytes) else None
    address = ctypes.addressof(held) if held is not None else image
    if not address:
        raise WrongCall("an image at a null pointer")
    magic = ctypes.c_uint32.from_address(address).value
    if magic == fatbin.WRAPPER:
        return joined([chosen(texts) for texts in fatbin.linked_at(address)]), None
    if magic == fatbin.MAGIC:
        if texts := fatbin.texts_at(address, needed=False):
            return chosen(texts), None
        code = fatbin.parts(address, fatbin.CUBIN)[0]
        return known(code), code
    if magic == elf.MAGIC and elf.is_cubin(ctypes.string_at(address, elf.HEADER)):
        code = ctypes.string_at(address, elf.size(ctypes.string_at(address, elf.HEADER)))
        return known(code), code
    text = ctypes.string_at(address).decode(errors="replace")
    if ".version" not in text[:100_000]:
        raise WrongCall("an image that is neither PTX, a cubin nor a fat binary", INVALID_IMAGE)
    return chosen([text]), None


def load(image: bytes | int) -> int:
    """Return the handle of a module."""
    text, code = text_of(image)
    handle = next(_handles)
    modules[handle] = DEVICE.module(text, machine_code=code) if text is not None else None
    return handle


def kernel(handle: int, name: str) -> int:
    """Return the handle of a kernel of a module. Raises WrongCall if it has none of this name."""
    if handle not in modules:
        raise Unsupported(f"module {handle:#x}, which was not loaded here")
    module = modules[handle]
    if module is not None:
        if name not in module.module.kernels:
            has = ", ".join(module.module.kernels)
            raise WrongCall(f"no kernel {name} in this module; it has {has or 'none'}", NOT_FOUND)
        module.program(name)
    found = next(_handles)
    kernels[found] = Kernel(module, name)
    return found


def names(handle: int) -> list[str]:
    """Return the names of a module's kernels; one without a name if its PTX is not known."""
    module = modules[handle]
    return list(module.module.kernels) if module is not None else [""]


def variable(handle: int, name: str) -> tuple[int, int]:
    """Return (address, bytes) of a module's variable. Raises WrongCall if it has none of this name."""
    module = Kernel(modules[handle], "").loaded()
    if name not in module.symbols:
        has = ", ".join(module.symbols)
        raise WrongCall(f"no variable {name} in this module; it has {has or 'none'}", NOT_FOUND)
    return module.symbols[name], module.module.variables[name].size
