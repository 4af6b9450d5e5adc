"""Functions of machine code that loop over arrays: their text, and calls of them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import threading
from collections.abc import Iterator

import numpy as np

from .llvm import Code, compiler
from .rules import pointer


class Text(Code):
    """A function of 64-bit arguments that are read from memory: Code with loops. Names are LLVM's text."""

    def __init__(self, names: str):
        super().__init__()
        self.here = "entry"
        self.arguments = {name: self.load("i64", "%arguments", k) for k, name in enumerate(names.split())}

    def __getitem__(self, name: str) -> str:
        return self.arguments[name]

    def label(self, name: str) -> None:
        super().label(name)
        self.here = name

    def let(self, text: str) -> str:
        return self.value(text, 64, False).text

    def number(self, what: str, a, b) -> str:
        return self.let(f"{what} i64 {a}, {b}")

    def address(self, kind: str, base: str, index: str | int) -> str:
        """The address of an element of an array. base: a pointer, or an argument."""
        if base != "%arguments" and base in self.arguments.values():
            base = self.let(f"inttoptr i64 {base} to ptr")
        return self.let(f"getelementptr {kind}, ptr {base}, i64 {index}")

    def load(self, kind: str, base: str, index: str | int = 0, element: str = "") -> str:
        """kind: what is loaded; element: what the array has, if not that."""
        return self.let(f"load {kind}, ptr {self.address(element or kind, base, index)}, align 1")

    def store(self, kind: str, what: str, base: str, index: str | int = 0, element: str = "") -> None:
        self.emit(f"store {kind} {what}, ptr {self.address(element or kind, base, index)}, align 1")

    def variable(self, kind: str, first: str) -> str:
        name = self.let(f"alloca {kind}")
        self.emit(f"store {kind} {first}, ptr {name}")
        return name

    def change(self, kind: str, variable: str, text: str) -> None:
        """Give a variable the value of an instruction, in which {} is the one that it has."""
        self.emit(f"store {kind} {self.let(text.format(self.let(f'load {kind}, ptr {variable}')))}, ptr {variable}")

    @contextlib.contextmanager
    def loop(self, count: str | int, step: int = 1) -> Iterator[str]:
        """Gives the index, from 0 until it reaches `count`; the first turn is always made."""
        before, index, following = self.here, f"%{self.name('i')}", f"%{self.name('i')}"
        head, latch, out = (self.name(what) for what in ("head", "latch", "out"))
        self.jump(head)
        self.label(head)
        self.emit(f"{index} = phi i64 [0, %{before}], [{following}, %{latch}]")
        yield index
        self.jump(latch)
        self.label(latch)
        self.emit(f"{following} = add i64 {index}, {step}")
        self.emit(f"br i1 {self.let(f'icmp ult i64 {following}, {count}')}, label %{head}, label %{out}")
        self.label(out)

    def return_if(self, condition: str, result: str) -> None:
        """Return already here, under a condition."""
        leave, stay = self.name("leave"), self.name("stay")
        self.emit(f"br i1 {condition}, label %{leave}, label %{stay}")
        self.label(leave)
        self.emit(f"ret i64 {result}")
        self.label(stay)

    def whole(self, result: str) -> str:
        """The text of the module. result: what the function returns."""
        lines = ["define i64 @block(ptr %arguments) {", "entry:", *self.lines, f"  ret i64 {result}", "}"]
        return "\n".join([*self.declarations.values(), *lines])


class Function:
    """Machine code of a Text, called with its arguments in their order."""

    def __init__(self, text: Text, result: str):
        self.pack = struct.Struct(f"<{len(text.arguments)}q").pack_into
        self.arguments = np.zeros(len(text.arguments), np.int64)
        function = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(compiler().function(text.whole(result)))
        self.run = functools.partial(function, pointer(self.arguments))
        self.lock = threading.Lock()  # of the arguments: other threads may run kernels, too

    def __call__(self, *arguments: int) -> int:
        with self.lock:
            self.pack(self.arguments, 0, *arguments)
            return self.run()
