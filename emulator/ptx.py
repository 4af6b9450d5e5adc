"""Parse PTX text into kernels: parameters, variables, registers and instructions (PTX ISA, sections 4 and 5).

Nothing is interpreted here: an opcode stays a dotted string, a register becomes a number. The text may come from
CuTe DSL, nvcc or a hand; what does not parse raises `Unsupported` with its line number.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from .errors import Unsupported

TYPE_BITS = {
    "pred": 1,
    **{f"{k}{n}": n for k in "bsu" for n in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "bf16": 16,
    "f16x2": 32,
    "bf16x2": 32,
    "u16x2": 32,
    "s16x2": 32,
    "f32": 32,
    "f64": 64,
}


@dataclass(frozen=True, slots=True)
class Reg:
    index: int
    name: str
    bits: int  # 1 for predicates, 16 for 8-bit ones


@dataclass(frozen=True, slots=True)
class Imm:
    """A literal. `value` is a Python int; floats are kept as their bits with `float_bits` 32 or 64."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A predefined register such as %tid.x, without its percent sign."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, parameter or function."""

    name: str


@dataclass(frozen=True, slots=True)
class Target:
    """A branch target: index of an instruction."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Vec:
    items: tuple


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`: two destinations."""

    first: object
    second: object


@dataclass(frozen=True, slots=True)
class Mem:
    """`[base + offset, extra...]`; base is a Reg, Symbol or Imm, extra holds tensor coordinates and the like."""

    base: object
    offset: int
    extra: tuple = ()


class Sink:
    """`_`: a result that nobody wants."""

    def __repr__(self):
        return "_"


SINK = Sink()


@dataclass(slots=True)
class Instr:
    op: str
    operands: tuple
    guard: Reg | None
    negated: bool
    line: int
    text: str
    loc: str = ""

    @property
    def parts(self) -> list[str]:
        return self.op.split(".")


@dataclass(slots=True)
class Param:
    name: str
    size: int
    align: int
    offset: int


@dataclass(slots=True)
class Variable:
    name: str
    space: str  # shared, global, const, local
    size: int  # bytes; 0 for an extern array
    align: int
    init: bytes | None = None


@dataclass
class Kernel:
    name: str
    params: list[Param]
    instrs: list[Instr] = field(default_factory=list)
    registers: list[Reg] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    branch_tables: dict[str, list[int]] = field(default_factory=dict)

    @property
    def param_bytes(self) -> int:
        return max((p.offset + p.size for p in self.params), default=0)


@dataclass
class Module:
    kernels: dict[str, Kernel]
    variables: dict[str, Variable]
    target: str
    version: str


_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[%$A-Za-z_][\w$]*(?:\.[\w]+)*|%[\w$.]+)
      |(?P<flt>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})
      |(?P<num>-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?)
      |(?P<punct>[\[\]{}(),+|!<>=-]))""",
    re.VERBOSE,
)
_SPECIALS = re.compile(
    r"%(?:n?tid|n?ctaid|cluster_n?cta(?:id|rank)|n?clusterid|n?warpid|laneid|n?smid|gridid|clock(?:_hi|64)?|globaltimer"
    r"(?:_lo|_hi)?|lanemask_\w+|is_explicit_cluster|dynamic_smem_size|total_smem_size|aggr_smem_size|envreg\d+|"
    r"pm\d+(?:_64)?|current_graph_exec|reserved_smem_offset_\w+)(?:\.[xyzw])?$"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def _int(text: str) -> int:
    text = text.rstrip("U")
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbB":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


class _Scope:
    def __init__(self, parent: _Scope | None = None):
        self.parent = parent
        self.names: dict[str, Reg] = {}
        self.ranges: dict[str, tuple[str, int]] = {}
        self.labels: dict[str, int] = {}


class _Parser:
    """One pass over the statements of a module."""

    def __init__(self, text: str):
        # Comments become blanks of the same shape, so that positions still give line numbers.
        self.text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text.rstrip("\0"))
        self.pos = 0
        self.files: dict[int, str] = {}
        self.loc = ""
        self.module = Module({}, {}, "", "")
        self.newlines = [m.start() for m in re.finditer("\n", self.text)]

    # -- positions ---------------------------------------------------------------------------------------------
    def line_of(self, pos: int) -> int:
        from bisect import bisect_left

        return bisect_left(self.newlines, pos) + 1

    def fail(self, why: str, pos: int | None = None):
        line = self.line_of(self.pos if pos is None else pos)
        source = self.text.splitlines()[line - 1].strip() if self.text else ""
        raise Unsupported(f"PTX line {line}: {why}: {source}")

    def skip_space(self):
        while self.pos < len(self.text) and self.text[self.pos].isspace():
            self.pos += 1

    def until(self, stops: str) -> str:
        start = self.pos
        depth = 0
        while self.pos < len(self.text):
            c = self.text[self.pos]
            if c == '"':
                self.pos = self.text.index('"', self.pos + 1)
            elif depth == 0 and c in stops:
                return self.text[start : self.pos]
            elif c in "[({":
                depth += 1
            elif c in "])}":
                depth -= 1
            self.pos += 1
        self.fail("unexpected end of text", start)

    def rest_of_line(self) -> str:
        end = self.text.find("\n", self.pos)
        end = len(self.text) if end < 0 else end
        line = self.text[self.pos : end]
        self.pos = end
        return line

    # -- module ------------------------------------------------------------------------------------------------
    def parse(self) -> Module:
        while True:
            self.skip_space()
            if self.pos >= len(self.text):
                return self.module
            rest = self.text[self.pos : self.pos + 16]
            if rest.startswith((".version", ".target", ".address_size", ".file")):
                self.directive_line(self.rest_of_line())
            elif rest.startswith(".section"):
                self.until("{")
                self.pos += 1
                self.until("}")
                self.pos += 1
            else:
                start = self.pos
                header = self.until(";{")
                if self.text[self.pos] == "{" and re.search(r"\.(entry|func)\b", header):
                    self.function(header, start)
                elif self.text[self.pos] == ";" or "=" in header:
                    header += self.until(";")
                    self.pos += 1
                    self.module_statement(header, start)
                else:
                    self.fail("unknown module statement", start)

    def directive_line(self, line: str):
        words = line.split()
        if words[0] == ".version":
            self.module.version = words[1]
        elif words[0] == ".target":
            self.module.target = words[1].rstrip(",")
        elif words[0] == ".file":
            match = re.match(r'\.file\s+(\d+)\s+"([^"]*)"', line)
            if match:
                self.files[int(match[1])] = match[2]

    def module_statement(self, text: str, pos: int):
        words = text.split()
        if not words or ".func" in words or ".entry" in words or words[0] in (".pragma", ".alias"):
            return  # forward declarations
        variable = self.variable(text, pos)
        if variable is None:
            self.fail("unknown module statement", pos)
        self.module.variables[variable.name] = variable

    def variable(self, text: str, pos: int) -> Variable | None:
        match = re.match(
            r"(?:\.(?:extern|visible|weak|common)\s+)*\.(shared|global|const|local)\b(?:::\w+)?((?:\s+\.\w+(?:\s+\d+)?)*?)"
            r"\s+\.(\w+)\s+([\w$]+)\s*((?:\[[^\]]*\])*)\s*(?:=\s*(.*))?$",
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
        vector = {"v2": 2, "v4": 4}.get((re.search(r"\.(v[24])\b", attributes) or [None, None])[1], 1)
        count = vector
        for d in re.findall(r"\[([^\]]*)\]", dims):
            count *= _int(d) if d.strip() else 0
        data = None
        if init is not None:
            values = re.findall(r"-?[\w.]+", init)
            try:
                data = b"".join((_int(v) & ((1 << 8 * width) - 1)).to_bytes(width, "little") for v in values)
            except ValueError:
                self.fail("initialiser that is not a list of integers", pos)
            data = data.ljust(count * width, b"\0")
        return Variable(name, space, count * width, int(align[1]) if align else width * vector, data)

    # -- functions ---------------------------------------------------------------------------------------------
    def function(self, header: str, start: int):
        match = re.search(r"\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)\s*(?:\((.*?)\))?(.*)$", header, re.DOTALL)
        if not match:
            self.fail("function header", start)
        what, name, params, tail = match.groups()
        kernel = Kernel(name, self.parameters(params or "", start))
        for directive, numbers in re.findall(r"\.(\w+)((?:\s+\d+\s*,?)*)", tail):
            kernel.directives[directive] = tuple(int(n) for n in re.findall(r"\d+", numbers))
        self.pos += 1
        self.body(kernel)
        if what == "entry":
            self.module.kernels[name] = kernel

    def parameters(self, text: str, pos: int) -> list[Param]:
        params, offset = [], 0
        for part in filter(None, (p.strip() for p in text.split(","))):
            match = re.match(r"\.param\s+(.*?)([\w$]+)\s*(?:\[(\d*)\])?$", part, re.DOTALL)
            if not match:
                self.fail(f"parameter {part!r}", pos)
            attributes, name, count = match.groups()
            kinds = [w for w in re.findall(r"\.(\w+)", attributes) if w in TYPE_BITS]
            width = TYPE_BITS[kinds[0]] // 8
            before_ptr = attributes.split(".ptr")[0]  # an alignment behind .ptr is that of the pointee
            align = re.search(r"\.align\s+(\d+)", before_ptr)
            align = int(align[1]) if align else width
            size = width * (int(count) if count else 1)
            offset = -(-offset // align) * align
            params.append(Param(name, size, align, offset))
            offset += size
        return params

    def body(self, kernel: Kernel):
        scopes = [_Scope()]
        scope = scopes[0]
        pending: list[tuple[int, _Scope]] = []  # instructions whose labels are resolved at the end
        scope_of: list[_Scope] = []
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
                if scope.parent is None:
                    break
                scope = scope.parent
                continue
            if c == ";":
                self.pos += 1
                continue
            if self.text.startswith(".loc", self.pos):
                words = self.rest_of_line().replace(",", " ").split()
                self.loc = f"{self.files.get(int(words[1]), '?')}:{words[2]}"
                continue
            label = re.compile(r"([\w$%]+)\s*:(?!:)").match(self.text, self.pos)
            if label:
                self.pos = label.end()
                self.skip_space()
                if self.text.startswith((".branchtargets", ".calltargets"), self.pos):
                    names = self.until(";").split(None, 1)[1]
                    self.pos += 1
                    scope.labels[label[1]] = -1
                    kernel.branch_tables[label[1]] = [n.strip() for n in names.split(",")]
                else:
                    scope.labels[label[1]] = len(kernel.instrs)
                continue
            start = self.pos
            text = self.until(";")
            self.pos += 1
            if text.startswith(".reg"):
                self.registers(text, scope, kernel, start)
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
        self.resolve_labels(kernel, scope_of)

    def registers(self, text: str, scope: _Scope, kernel: Kernel, pos: int):
        match = re.match(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)$", text, re.DOTALL)
        if not match or match[1] not in TYPE_BITS:
            self.fail("register declaration", pos)
        bits = max(16, TYPE_BITS[match[1]]) if match[1] != "pred" else 1
        for name in match[2].split(","):
            name = name.strip()
            many = re.match(r"([\w$%]+)<(\d+)>$", name)
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            for n in names:
                reg = Reg(len(kernel.registers), n, bits)
                kernel.registers.append(reg)
                scope.names[n] = reg

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
        op, _, operands = rest.partition(" ")
        tokens = self.tokens(operands, pos)
        parsed = self.operand_list(tokens, scope, pos, closing=None)
        return Instr(op, tuple(parsed), guard, negated, self.line_of(pos), text, self.loc)

    def tokens(self, text: str, pos: int) -> list[tuple[str, str]]:
        out, at = [], 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if not match:
                self.fail(f"operand {text[at:]!r}", pos)
            out.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        out.append(("end", ""))
        return out

    def operand_list(self, tokens, scope, pos, closing) -> list:
        items = []
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
            if value == "(":
                return Vec(tuple(self.operand_list(tokens, scope, pos, ")")))
            if value == "[":
                base = self.operand(tokens, scope, pos)
                offset = 0
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
            if value == "!":
                return Pair("not", self.operand(tokens, scope, pos))
            if value == "-":
                kind, value = tokens.pop(0)
                return Imm(-_int(value))
            self.fail(f"unexpected {value!r}", pos)
        if kind == "num":
            return Imm(_int(value))
        if kind == "flt":
            bits = 32 if value[1] in "fF" else 64
            return Imm(int(value[2:], 16), bits)
        if kind == "name":
            first = SINK if value == "_" else self.lookup(value, scope)
            if tokens[0][1] == "|":
                tokens.pop(0)
                return Pair(first, self.operand(tokens, scope, pos))
            return first
        self.fail("operand", pos)

    def lookup(self, name: str, scope: _Scope):
        at = scope
        while at is not None:
            if name in at.names:
                return at.names[name]
            at = at.parent
        if name == "WARP_SZ":
            return Imm(32)
        if name.startswith("%"):
            if _SPECIALS.match(name):
                return Special(name[1:])
            self.fail(f"unknown register {name}")
        return Symbol(name)

    def resolve_labels(self, kernel: Kernel, scope_of: list[_Scope]):
        def find(name: str, scope: _Scope):
            while scope is not None:
                if name in scope.labels:
                    return scope.labels[name]
                scope = scope.parent
            return None

        for instr, scope in zip(kernel.instrs, scope_of, strict=True):
            if instr.op.split(".")[0] in ("bra", "brx", "call"):
                operands = []
                for o in instr.operands:
                    index = find(o.name, scope) if isinstance(o, Symbol) else None
                    operands.append(o if index is None or index < 0 else Target(index, o.name))
                instr.operands = tuple(operands)
        tables = kernel.branch_tables
        for table, names in tables.items():
            tables[table] = [find(n, s) for n in names for s in [scope_of[0]] if True]
            if None in tables[table]:
                raise Unsupported(f"branch table {table} with labels of an inner scope")


def parse(text: str) -> Module:
    """Parse the text of one PTX module. Raises `Unsupported`, naming the line, for what it does not know."""
    return _Parser(text).parse()


def float_immediate(imm: Imm, bits: int) -> int:
    """Bits of a literal used as a `bits`-wide float: 0f and 0d forms convert, as PTX 4.5.2 has it."""
    if imm.float_bits == bits or not imm.float_bits:
        return imm.value
    if imm.float_bits == 64 and bits == 32:
        return struct.unpack("<I", struct.pack("<f", struct.unpack("<d", struct.pack("<Q", imm.value))[0]))[0]
    return struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", imm.value))[0]))[0]
