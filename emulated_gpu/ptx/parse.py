"""Parse PTX text into kernels: parameters, variables, registers and instructions (PTX ISA, sections 4 and 5).

Nothing is interpreted here: an opcode stays a dotted string, a register becomes a number. The text may come from
CuTe DSL, nvcc or a hand; what does not parse raises `Unsupported` with its line number.
"""

from __future__ import annotations

import operator
import re
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from posixpath import normpath
from typing import NoReturn

from ..errors import Unsupported
from . import device_runtime
from .inline import link
from .syntax import (
    SINK,
    TYPE_BITS,
    Imm,
    Instr,
    Kernel,
    Mem,
    Module,
    Pair,
    Param,
    Reg,
    Special,
    Symbol,
    Target,
    Variable,
    Vec,
    float_immediate,
)

WARP_SIZE = "WARP_SZ"  # the only constant with a name (4.4.1)
_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[%$A-Za-z_][\w$]*(?:\.[\w]+)*|%[\w$.]+)
      |(?P<flt>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|-?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|-?\d+[eE][-+]?\d+)
      |(?P<num>-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?)
      |(?P<punct><<|>>|[<>=!]=|&&|\|\||[\[\]{}(),+|!<>=*/&^~-]))""",
    re.VERBOSE,
)
_SPECIALS = re.compile(
    r"%(?:n?tid|n?ctaid|cluster_n?cta(?:id|rank)|n?clusterid|n?warpid|laneid|n?smid|gridid|clock(?:_hi|64)?|globaltimer"
    r"(?:_lo|_hi)?|lanemask_\w+|is_explicit_cluster|dynamic_smem_size|total_smem_size|aggr_smem_size|envreg\d+|"
    r"pm\d+(?:_64)?|current_graph_exec|reserved_smem_offset_\w+)(?:\.[xyzw])?$"
)
# No blank has to follow, and one may come before a modifier: `tcgen05.ld.sync.aligned .32x32b.x1.b32{%r1}, [%r2]`
_OPCODE = re.compile(r"[\w.:$]*(?:\s+\.[\w.:$]+)*")
_SPACE, _LOC, _LABEL = re.compile(r"\s*"), re.compile(r"\.loc\s"), re.compile(r"([\w$%]+)\s*:(?!:)")
_MARKS = re.compile(r'"[^"]*"|[\[\](){};]')
_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)  # or a string, in which there is none: .file "a//b"


def _int(text: str) -> int:
    text = text.rstrip("U")
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbB":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def _float(text: str) -> Imm:
    """A literal of 4.5.2: 0f or 0d with the bits, or decimal, which is a double."""
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return Imm(int(text[2:], 16), 32 if text[1] in "fF" else 64)
    return Imm(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)


# Operators of constant expressions (4.5.5) and how tightly they bind
_PRECEDENCE = {
    op: level
    for level, ops in enumerate(["||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %"])
    for op in ops.split()
}
_OPERATORS = {
    "||": lambda a, b: int(bool(a or b)), "&&": lambda a, b: int(bool(a and b)),
    "|": operator.or_, "^": operator.xor, "&": operator.and_, "<<": operator.lshift, ">>": operator.rshift,
    "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b), "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b), ">": lambda a, b: int(a > b), ">=": lambda a, b: int(a >= b),
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}  # fmt: skip
_UNARY = {"-": operator.neg, "+": operator.pos, "~": operator.invert, "!": lambda a: int(not a)}


class _Scope:
    def __init__(self, parent: _Scope | None = None):
        self.parent = parent
        self.names: dict[str, Reg | Vec | Symbol] = {}
        self.labels: dict[str, int] = {}
        self.tables: dict[str, str] = {}  # label of .branchtargets -> its key in Kernel.branch_tables

    def find(self, kind: str, name: str):
        """Return the meaning of `name` in the innermost scope that has it, else None. kind: names, labels or tables."""
        scope: _Scope | None = self
        while scope is not None:
            found = getattr(scope, kind).get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None


class _Parser:
    """One pass over the statements of a module."""

    def __init__(self, text: str):
        # Comments become blanks of the same shape, so that positions still give line numbers.
        self.text = _COMMENT.sub(
            lambda m: m.group() if m.group()[0] == '"' else re.sub(r"[^\n]", " ", m.group()), text.rstrip("\0")
        )
        self.pos = 0
        # .file may come behind the lines that name it
        self.files = {
            int(n): normpath(name) for n, name in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', self.text, re.MULTILINE)
        }
        self.loc = ""
        self.calls: dict[tuple[str, ...], tuple] = {}  # file, line, column of a .loc -> (file, line) of all its calls
        self.module = Module({}, {}, {}, "", "")
        self.newlines = [m.start() for m in re.finditer("\n", self.text)]

    # -- positions ---------------------------------------------------------------------------------------------
    def line_of(self, pos: int) -> int:
        return bisect_left(self.newlines, pos) + 1

    def fail(self, why: str, pos: int | None = None) -> NoReturn:
        line = self.line_of(self.pos if pos is None else pos)
        source = self.text.splitlines()[line - 1].strip() if self.text else ""
        raise Unsupported(f"PTX line {line}: {why}: {source}")

    def skip_space(self):
        self.pos = _SPACE.match(self.text, self.pos).end()  # type: ignore[union-attr]  # which may be empty

    def until(self, stops: str) -> str:
        """Return the text up to one of these marks, outside of brackets and strings, and go there."""
        start = self.pos
        depth = 0
        for mark in _MARKS.finditer(self.text, start):
            c = mark[0]
            if depth == 0 and c in stops:
                self.pos = mark.start()
                return self.text[start : self.pos]
            depth += (c in "[({") - (c in "])}")
        self.fail("unexpected end of text", start)

    def rest_of_line(self) -> str:
        end = self.text.find("\n", self.pos)
        end = len(self.text) if end < 0 else end
        line = self.text[self.pos : end]
        self.pos = end
        return line

    # -- module ------------------------------------------------------------------------------------------------
    def parse(self) -> Module:
        for does, header, start in self.statements():
            does(header, start)
        return self.module

    def statements(self) -> Iterator[tuple[Callable[[str, int], None], str, int]]:
        """Yield what each statement is for, its header and place; self.pos is behind it, or at a function's body."""
        while True:
            self.skip_space()
            start = self.pos
            if start >= len(self.text):
                return
            rest = self.text[start : start + 16]
            if rest.startswith((".version", ".target", ".address_size", ".file")):
                yield self.directive_line, self.rest_of_line(), start
            elif rest.startswith(".section"):
                self.until("{")
                self.through_body()
                yield self.directive_line, ".section", start
            else:
                header = self.until(";{")
                if self.text[self.pos] == "{" and re.search(r"\.(entry|func)\b", header):
                    yield self.function, header, start
                elif self.text[self.pos] == ";" or "=" in header:
                    header += self.until(";")
                    self.pos += 1
                    yield self.module_statement, header, start
                else:
                    self.fail("unknown module statement", start)

    def through_body(self) -> None:
        self.pos += 1
        self.until("}")
        self.pos += 1

    def directive_line(self, line: str, _place: int):
        words = line.split()
        if words[0] == ".version":
            self.module.version = words[1]
        elif words[0] == ".target":
            self.module.target = words[1].rstrip(",")

    def module_statement(self, text: str, pos: int):
        words = text.split()
        if not words or re.search(r"\.(func|entry)\b", text) or words[0] in (".pragma", ".alias"):
            return  # forward declarations
        variable = self.variable(text, pos)
        if variable is None:
            self.fail("unknown module statement", pos)
        if words[0] != ".extern" or variable.space == "shared":  # else another statement defines it, or nobody
            self.module.variables[variable.name] = variable

    def variable(self, text: str, pos: int) -> Variable | None:
        match = re.match(
            r"(?:\.(?:extern|visible|weak|common)\s*)*\.(shared|global|const|local)\b(?:::\w+)?((?:\s*\.\w+(?:\(\.managed\)|\s+\d+)?)*?)"
            r"\s*\.(\w+)\s+([\w$]+)\s*((?:\[[^\]]*\])*)\s*(?:=\s*(.*))?$",
            text.strip(),
            re.DOTALL,
        )
        if not match:
            return None
        space, attributes, kind, name, dims, init = match.groups()
        if kind not in TYPE_BITS:
            self.fail(f"unknown type .{kind}", pos)
        width = TYPE_BITS[kind] // 8
        align = re.search(r"\.align\s+(\d+)", attributes)
        vector = {"v2": 2, "v4": 4}.get(sized[1] if (sized := re.search(r"\.(v[24])\b", attributes)) else "", 1)
        count = vector
        for d in re.findall(r"\[([^\]]*)\]", dims):
            count *= _int(d) if d.strip() else 0
        data: bytes | None = None
        addresses: tuple[tuple[int, str, int], ...] = ()
        if init is not None:
            is_float = kind in ("f32", "f64")
            if not is_float and kind in ("u64", "b64", "s64"):
                init, addresses = self.addresses(init, width)
                for _, named, _ in addresses:
                    known = named in self.module.variables
                    if not known and not re.search(rf"\.func\b[^;{{]*?[\s)]{re.escape(named)}\s*[(;]", self.text[:pos]):
                        self.fail(f"initialiser that names {named}, which is not declared before", pos)
            values = re.findall(r"-?[\w.]+(?:(?<=[eE])[-+]\d+)?", init) if is_float else re.findall(r"-?[\w.]+", init)
            try:
                numbers = [float_immediate(_float(v), 8 * width) if is_float else _int(v) for v in values]
            except ValueError:
                self.fail("initialiser that is not a list of numbers", pos)
            data = b"".join((v & ((1 << 8 * width) - 1)).to_bytes(width, "little") for v in numbers)
            data = data.ljust(count * width, b"\0")
        aligned = int(align[1]) if align else width * vector
        return Variable(name, space, count * width, aligned, data, addresses, width * vector)

    @staticmethod
    def addresses(init: str, width: int) -> tuple[str, tuple[tuple[int, str, int], ...]]:
        """An initialiser with zeros for the names in it, and what those are: see Variable.addresses."""
        values, found = [], []
        for k, value in enumerate(init.strip().strip("{}").split(",")):
            name = re.match(r"\s*(?:generic\s*\(\s*([\w$]+)\s*\)|([A-Za-z_$][\w$]*))\s*(?:\+\s*(\d+))?\s*$", value)
            if name:
                found.append((k * width, name[1] or name[2], int(name[3] or 0)))
            values.append("0" if name else value)
        return ", ".join(values), tuple(found)

    # -- functions ---------------------------------------------------------------------------------------------
    def function(self, header: str, start: int):
        match = re.search(r"\.(entry|func)\b\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\((.*?)\))?(.*)$", header, re.DOTALL)
        if not match:
            self.fail("function header", start)
        what, results, name, params, tail = match.groups()
        self.kernel = kernel = Kernel(name, self.parameters(params or "", start) if what == "entry" else [])
        self.in_function = what == "func"
        scope = _Scope()
        if self.in_function:
            kernel.results = self.formals(results or "", scope, start)
            kernel.formals = self.formals(params or "", scope, start)
        for directive, numbers in re.findall(r"\.(\w+)((?:\s+\d+\s*,?)*)", tail):
            kernel.directives[directive] = tuple(int(n) for n in re.findall(r"\d+", numbers))
        self.pos += 1
        self.body(kernel, scope)
        (self.module.functions if self.in_function else self.module.kernels)[name] = kernel

    def formals(self, text: str, scope: _Scope, pos: int) -> tuple:
        """Registers and .param variables that a device function is called with."""
        found: list[Reg | Vec | Symbol] = []
        for part in filter(None, (p.strip() for p in text.split(","))):
            if part.startswith(".reg"):
                self.registers(part, scope, self.kernel, pos)
                found.append(self.kernel.registers[-1])
            else:
                found.append(self.param_variable(part, scope, pos))
        return tuple(found)

    def param_variable(self, text: str, scope: _Scope, pos: int) -> Symbol:
        """A .param variable of a call or a device function: memory of the thread, like .local."""
        (p,) = self.parameters(text, pos)
        name = f"{p.name}@{len(self.kernel.variables)}"
        self.kernel.variables[name] = Variable(name, "local", p.size, p.align)
        symbol = scope.names[p.name] = Symbol(name)
        return symbol

    def parameters(self, text: str, pos: int) -> list[Param]:
        params, offset = [], 0
        for part in filter(None, (p.strip() for p in text.split(","))):
            match = re.match(r"\.param\b\s*(.*?)([\w$]+)\s*(?:\[(\d*)\])?$", part, re.DOTALL)
            if not match:
                self.fail(f"parameter {part!r}", pos)
            attributes, name, count = match.groups()
            kinds = [w for w in re.findall(r"\.(\w+)", attributes) if w in TYPE_BITS]
            width = TYPE_BITS[kinds[0]] // 8
            before_ptr = attributes.split(".ptr")[0]  # an alignment behind .ptr is that of the pointee
            aligned = re.search(r"\.align\s+(\d+)", before_ptr)
            align = int(aligned[1]) if aligned else width
            size = width * (int(count) if count else 1)
            offset = -(-offset // align) * align
            params.append(Param(name, size, align, offset))
            offset += size
        return params

    def body(self, kernel: Kernel, scope: _Scope):
        outermost = scope
        scope_of: list[_Scope] = []  # of instructions and tables, whose labels are resolved at the end
        tables: list[tuple[str, list[str], _Scope]] = []
        while True:
            self.skip_space()
            if self.pos >= len(self.text):
                self.fail("function without an end")
            c = self.text[self.pos]
            if c == "{":
                scope = _Scope(scope)
                self.pos += 1
                continue
            if c == "}":
                self.pos += 1
                if scope is outermost:
                    break
                assert scope.parent is not None
                scope = scope.parent
                continue
            if c == ";":
                self.pos += 1
                continue
            if _LOC.match(self.text, self.pos):
                self.location(self.rest_of_line())
                continue
            label = _LABEL.match(self.text, self.pos)
            if label:
                self.pos = label.end()
                self.skip_space()
                if self.text.startswith((".branchtargets", ".calltargets", ".callprototype"), self.pos):
                    what, names = self.until(";").split(None, 1)
                    self.pos += 1
                    if what == ".branchtargets":
                        key = scope.tables[label[1]] = f"{label[1]}@{len(tables)}"
                        tables.append((key, [n.strip() for n in names.split(",")], scope))
                else:
                    scope.labels[label[1]] = len(kernel.instrs)
                continue
            start = self.pos
            text = self.until(";")
            self.pos += 1
            if text.startswith(".reg"):
                self.registers(text, scope, kernel, start)
            elif text.startswith(".param"):
                self.param_variable(text, scope, start)
            elif text.startswith((".shared", ".local", ".extern", ".global", ".const")):
                variable = self.variable(text, start)
                if variable is None:
                    self.fail("variable", start)
                kernel.variables[variable.name] = variable
            elif text.startswith((".pragma", ".noreturn", ".minnctapersm", ".maxntid")):
                pass
            elif text.startswith("."):
                self.fail("unknown directive", start)
            else:
                kernel.instrs.append(self.instruction(text, start, scope))
                scope_of.append(scope)
        self.resolve_labels(kernel, scope_of, tables)

    def location(self, line: str):
        """.loc (11.5.3): what follows comes from `file:line`; of a function that was inlined, from
        `file:line of the call > file:line`, the outermost call first and a file that stays the same said once."""
        words = line.replace(",", " ").split()
        file, number = self.files.get(int(words[1]), "?"), words[2]
        calls = ()
        if "inlined_at" in words:
            at = tuple(words[words.index("inlined_at") + 1 :][:3])
            calls = self.calls.get(at) or ((self.files.get(int(at[0]), "?"), at[1]),)
        places = self.calls[tuple(words[1:4])] = (*calls, (file, number))
        shown = zip(("", *(name for name, _ in places)), places)
        self.loc = " > ".join(number if before == name else f"{name}:{number}" for before, (name, number) in shown)
        if number == "0":  # of several lines at once: compilers say so by this
            self.loc = ""

    def registers(self, text: str, scope: _Scope, kernel: Kernel, pos: int):
        match = re.match(r"\.reg\s*(?:\.v([24])\s*)?\.(\w+)\b\s*(.+)$", text, re.DOTALL)
        if not match or match[2] not in TYPE_BITS:
            self.fail("register declaration", pos)
        bits = max(16, TYPE_BITS[match[2]]) if match[2] != "pred" else 1
        for name in match[3].split(","):
            name = name.strip()
            many = re.match(r"([\w$%]+)<(\d+)>$", name)
            for n in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]:
                parts = [f"{n}.{part}" for part in "xyzw"[: int(match[1])]] if match[1] else [n]
                for part in parts:
                    register = scope.names[part] = Reg(len(kernel.registers), part, bits)
                    kernel.registers.append(register)
                if match[1]:  # a vector (5.4.2), whose elements are also .r, .g, .b and .a
                    scope.names[n] = Vec(tuple(scope.names[part] for part in parts))
                    scope.names |= {f"{n}.{other}": scope.names[part] for other, part in zip("rgba", parts)}

    # -- instructions ------------------------------------------------------------------------------------------
    def instruction(self, text: str, pos: int, scope: _Scope) -> Instr:
        text = " ".join(text.split())
        guard, negated, rest = None, False, text
        if rest.startswith("@"):
            predicate, rest = rest[1:].split(None, 1)
            negated = predicate.startswith("!")
            guard = self.lookup(predicate.lstrip("!"), scope)
            if not isinstance(guard, Reg):
                self.fail("guard predicate", pos)
        opcode = _OPCODE.match(rest)
        op = opcode[0] if opcode else ""
        operands, op = rest[len(op) :], op.replace(" ", "")
        self.in_call, self.in_address = op.split(".")[0] == "call", False
        tokens = self.tokens(operands, pos)
        parsed = self.operand_list(tokens, scope, pos, closing=None)
        if op.startswith(("ld.param", "st.param")) and self.is_param_variable(op, parsed):
            op = re.sub(r"\.param(::func)?", ".local", op, count=1)
        return Instr(op, tuple(parsed), guard, negated, self.line_of(pos), text, self.loc)

    def is_param_variable(self, op: str, operands: list) -> bool:
        """Whether ld.param or st.param means a .param variable, not a parameter of the kernel."""
        memory = next(o for o in operands if isinstance(o, Mem))
        named = isinstance(memory.base, Symbol) and memory.base.name in self.kernel.variables
        return named or self.in_function or op.startswith("st")

    def tokens(self, text: str, pos: int) -> list[tuple[str, str]]:
        out, at = [], 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if not match:
                self.fail(f"operand {text[at:]!r}", pos)
            kind = match.lastgroup or ""
            out.append((kind, match[kind]))
            at = match.end()
        out.append(("end", ""))
        return out

    def operand_list(self, tokens, scope, pos, closing) -> list:
        items: list = []
        if tokens[0] == ("end", "") or (closing and tokens[0] == ("punct", closing)):
            tokens.pop(0)
            return items
        while True:
            items.append(self.operand(tokens, scope, pos))
            kind, value = tokens.pop(0)
            if (kind, value) == ("punct", ","):
                continue
            if (closing is None and kind == "end") or (closing and value == closing):
                return items
            self.fail(f"unexpected {value!r} in operands", pos)

    def operand(self, tokens, scope, pos):
        kind, value = tokens.pop(0)
        if kind == "punct":
            if value == "{":
                return Vec(tuple(self.operand_list(tokens, scope, pos, "}")))
            if value == "(" and self.in_call:
                return Vec(tuple(self.operand_list(tokens, scope, pos, ")")))
            if value == "[":
                self.in_address = True
                inner = self.operand(tokens, scope, pos)
                self.in_address = False
                base, offset = (inner.base, inner.offset) if isinstance(inner, Mem) else (inner, 0)  # [array[2]]
                while tokens[0][1] == "+" or (tokens[0][0] == "num" and tokens[0][1].startswith("-")):
                    if tokens[0][1] == "+":
                        tokens.pop(0)
                    kind, value = tokens.pop(0)
                    if kind != "num":
                        self.fail("address offset", pos)
                    offset += _int(value)
                extra = ()
                if tokens[0][1] == ",":
                    tokens.pop(0)
                    extra = tuple(self.operand_list(tokens, scope, pos, "]"))
                elif tokens.pop(0)[1] != "]":
                    self.fail("address", pos)
                return Mem(base, offset, extra)
            if value == "!" and tokens[0][0] == "name":
                return Pair("not", self.operand(tokens, scope, pos))
        if kind == "flt":
            return _float(value)
        if kind == "num" or value in ("(", WARP_SIZE) or value in _UNARY:
            tokens.insert(0, (kind, value))
            return Imm(self.expression(tokens, pos))
        if kind == "name":
            first = SINK if value == "_" else self.lookup(value, scope)
            if tokens[0][1] == "|":
                tokens.pop(0)
                return Pair(first, self.operand(tokens, scope, pos))
            return self.place_in(first, tokens, pos) if isinstance(first, Symbol) else first
        self.fail("operand", pos)

    def place_in(self, symbol: Symbol, tokens, pos: int) -> Symbol | Mem:
        """`array[2]` and `variable+8` with no brackets around them: that place of the variable (6.4.2, 9.7.9.5)."""
        if tokens[0][1] == "[":
            tokens.pop(0)
            index = self.expression(tokens, pos)
            if tokens.pop(0)[1] != "]":
                self.fail("index of an array", pos)
            variable = self.kernel.variables.get(symbol.name) or self.module.variables.get(symbol.name)
            if variable is None:
                self.fail(f"an element of {symbol.name}, which is no array", pos)
            return Mem(symbol, index * variable.element)
        if tokens[0][1] == "+" and not self.in_address:
            tokens.pop(0)
            return Mem(symbol, self.expression(tokens, pos))
        return symbol

    def expression(self, tokens, pos: int, level: int = 0) -> int:
        """Value of a constant expression of operators that bind at least as tightly as `level`."""
        kind, value = tokens.pop(0)
        if kind == "num" or value == WARP_SIZE:
            left = _int(value) if kind == "num" else 32
        elif value == "(":
            left = self.expression(tokens, pos)
            if tokens.pop(0)[1] != ")":
                self.fail("constant expression", pos)
        elif value in _UNARY:
            left = _UNARY[value](self.expression(tokens, pos, len(_PRECEDENCE)))
        else:
            self.fail(f"unexpected {value!r}", pos)
        while True:
            kind, value = tokens[0]
            if kind == "num" and value.startswith("-"):  # 3-2 is a difference
                tokens[:1] = [("punct", "-"), ("num", value[1:])]
                continue
            if _PRECEDENCE.get(value, -1) < level:
                return left
            tokens.pop(0)
            right = self.expression(tokens, pos, _PRECEDENCE[value] + 1)
            if value in "/%" and right == 0:
                self.fail("division by zero", pos)
            if value in ("<<", ">>") and not 0 <= right < 64:
                self.fail(f"a shift by {right}", pos)
            left = _OPERATORS[value](left, right)
            if abs(left) >> 64:  # a text could have Python compute for hours
                self.fail("a constant of more than 64 bits", pos)

    def lookup(self, name: str, scope: _Scope):
        found = scope.find("names", name)
        if found is not None:
            return found
        if name.startswith("%"):
            if _SPECIALS.match(name):
                return Special(name[1:])
            self.fail(f"unknown register {name}")
        return Symbol(name)

    def resolve_labels(self, kernel: Kernel, scope_of: list[_Scope], tables: list[tuple[str, list[str], _Scope]]):
        for instr, scope in zip(kernel.instrs, scope_of, strict=True):
            base = instr.op.split(".")[0]
            if base == "bra" and isinstance(instr.operands[0], Symbol):
                name = instr.operands[0].name
                index = scope.find("labels", name)
                instr.operands = instr.operands if index is None else (Target(index, name),)
            elif base == "brx":
                table = scope.find("tables", instr.operands[1].name)
                if table is None:
                    raise Unsupported(f"PTX line {instr.line}: branch table {instr.operands[1].name}: {instr.text}")
                instr.operands = (instr.operands[0], Symbol(table))
        for table, names, scope in tables:
            kernel.branch_tables[table] = [scope.find("labels", n) for n in names]
            if None in kernel.branch_tables[table]:
                raise Unsupported(f"branch table {table.partition('@')[0]}: no such label among {names}")


def statements(text: str) -> Iterator[tuple[str, str]]:
    """Yield header and text of each statement of a module."""
    parser = _Parser(text)
    for does, header, start in parser.statements():
        if does == parser.function:
            parser.through_body()
        yield header, parser.text[start : parser.pos] + "\n"


def parse(text: str) -> Module:
    """Parse the text of one PTX module. Raises `Unsupported`, naming the line, for what it does not know."""
    module = _Parser(text).parse()
    if any(name in text and name not in module.functions for name in device_runtime.NAMES):
        module.functions |= _Parser(device_runtime.GRID_BARRIER).parse().functions
    link(module)
    for kernel in module.kernels.values():
        kernel.source = text
    return module
