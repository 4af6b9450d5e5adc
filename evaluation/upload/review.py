"""Reads a submission's syntax tree by rules: imports, installs, caches, patches, tricks.

These are heuristics, as those of the automatic review are: they name a construct and its line, a person decides what
is meant. What is refused wherever it occurs is an error, what has honest uses a warning. Nothing is executed.
"""

import ast
import builtins
import re
import sys

from evaluation.upload.findings import Finding

FORBIDDEN_WORD = "stream"

# Modules of the standard library that Python 3.12 and 3.13, the grader's, no longer have.
REMOVED = set(
    "aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp lib2to3 mailcap msilib nis nntplib "
    "ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib".split()
)
# Top-level packages that the grader's image installs by name or with torch, and the task's own files.
IMAGE = set(
    "torch torchgen functorch triton numpy cutlass cuda nvidia nvmath tinygrad helion requests packaging ninja wheel "
    "pytest yaml sympy networkx jinja2 filelock fsspec mpmath typing_extensions setuptools pkg_resources".split()
)
TASK = {"task", "utils", "reference"}
HARNESS = {"eval", "submission", "libkernelbot", "modal_runner", "__main__"}

# (rule, severity, what it matches, message); matched against the full dotted name of whatever is used.
USES = [
    (rule, severity, re.compile(pattern), message)
    for rule, severity, pattern, message in (
        (
            "frame-walk",
            "error",
            r"sys\.(_getframe|_current_frames|settrace|setprofile)|gc\.get_(objects|referrers|referents)"
            r"|inspect\.(stack|currentframe|getouterframes|getinnerframes|trace)|traceback\.(walk|extract)_stack",
            "looks into the frames or objects of its caller",
        ),
        (
            "graph",
            "error",
            r"torch\.cuda\.(CUDAGraph|graph|graphs(\..*)?|make_graphed_callables|graph_pool_handle)|cuda\..*Graph\w*",
            "captures launches in a graph",
        ),
        (
            "second-queue",
            "error",
            r"cuda\.(.*\.)?(cuCtxCreate|cuGreenCtxCreate|cuDevicePrimaryCtx)\w*",
            "makes a context of its own",
        ),
        (
            "second-queue",
            "warning",
            r"threading\.(Thread|Timer)|_thread\.start_new_thread|concurrent\.futures\.\w*Executor"
            r"|multiprocessing\.(Process|Pool|get_context)",
            "works beside the calls that are timed",
        ),
        ("dynamic-code", "error", r"marshal\.loads?|types\.CodeType", "runs code that cannot be read here"),
        (
            "dynamic-code",
            "warning",
            r"importlib\.reload|runpy\.\w+|pickle\.loads?|builtins\.compile|ctypes\.pythonapi(\..*)?",
            "runs code that cannot be read here",
        ),
        (
            "harness",
            "error",
            r"sys\.(argv|orig_argv)|os\.(ppid|getppid)",
            "depends on how the grader was started",
        ),
        ("harness", "warning", r"sys\.modules", "looks at modules that the grader has loaded"),
        ("install", "error", r"pip(\..*)?|ensurepip(\..*)?|venv\..*", "installs packages at run time"),
        (
            "install",
            "warning",
            r"urllib\.request\.\w+|requests\.\w+|torch\.hub\.\w+|socket\.\w+|http\.client\.\w+",
            "uses the network at run time",
        ),
        ("identity-cache", "error", r"weakref\.\w+", "keys a cache on the identity of objects"),
    )
]
PROCESSES = re.compile(r"subprocess\.\w+|os\.(system|popen|exec\w*|spawn\w*|posix_spawn\w*|fork\w*)|pty\.spawn")
INSTALLERS = re.compile(r"\b(pip3?|uv|uvx|conda|mamba|apt|apt-get|easy_install|curl|wget|git)\b")
GRAPH_MODES = ("reduce-overhead", "max-autotune")  # of torch.compile
FRAME_ATTRIBUTES = {"f_back", "f_locals", "f_globals", "f_builtins", "tb_frame", "gi_frame", "cr_frame"}
CODE_ATTRIBUTES = {"__code__", "__globals__", "__closure__"}
DECODERS = re.compile(r"(base64|zlib|lzma|bz2|gzip|binascii|codecs|marshal)\.\w+|(builtins\.)?bytes\.fromhex")
# Assigning to these modules changes settings, not behaviour that the grader relies on.
SETTINGS = ("torch.backends.", "torch._dynamo.config.", "torch._inductor.config.", "torch.autograd.", "os.environ")
NATIVE = (  # in text that a C++ compiler, or ctypes, is to read
    ("graph", re.compile(r"\bcu(da)?Graph\w*|BeginCapture"), "captures launches in a graph"),
    ("second-queue", re.compile(r"\bcu(Green)?CtxCreate\w*"), "makes a context of its own"),
    ("hidden-word", re.compile(r"\w##\w|\w\s+##\s+\w"), "pastes tokens, which the review takes for a hidden CUDA call"),
    ("harness", re.compile(r"POPCORN_|/proc/self/(fd|maps|mem)"), "reaches for the grader's own state"),
    (
        "harness",
        re.compile(r"\b(test|benchmark)(\.\d+\.(status|mean|spec)|-count): |\bcheck: pass"),
        "is a line of the grader's protocol",
    ),
)


class Review(ast.NodeVisitor):
    """Collects `findings` over a whole module."""

    def __init__(self, tree: ast.Module):
        self.findings: list[Finding] = []
        self.names: dict[str, str] = {}  # local name -> dotted name of what it was imported as
        self.guarded: set[ast.AST] = set()  # imports that may fail
        self.identities: set[str] = set()  # variables that hold an id or an address
        self.cached: set[str] = set()  # functions that remember their arguments
        self.documentation: set[ast.AST] = set()
        self.judged: set[ast.AST] = set()  # expressions that have been reported in full
        self.collect(tree)
        self.visit(tree)

    def report(self, node: ast.expr | ast.stmt, rule: str, severity: str, message: str) -> None:
        self.findings.append(Finding(node.lineno, node.col_offset + 1, rule, severity, message))

    # -- names -------------------------------------------------------------------------------------------------

    def collect(self, tree: ast.Module) -> None:
        """Learns what names stand for, before any of them is judged; a later binding wins, wherever it is."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.names[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Try):
                types = [handler.type for handler in node.handlers]
                caught = {name.id for kind in types if kind for name in ast.walk(kind) if isinstance(name, ast.Name)}
                if caught & {"ImportError", "ModuleNotFoundError", "Exception"} or None in types:
                    self.guarded.update(inner for statement in node.body for inner in ast.walk(statement))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                self.documentation.add(node.value)
        for node in ast.walk(tree):  # `f = time.perf_counter` and `m = importlib.import_module("time")`
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                path = self.dotted(node.value)
                if path and path != node.targets[0].id:
                    self.names.setdefault(node.targets[0].id, path)
                elif isinstance(node.value, ast.Call) and "cache" in (self.dotted(node.value.func) or ""):
                    self.cached.add(node.targets[0].id)
                elif (
                    isinstance(node.value, ast.Call)
                    and isinstance(node.value.func, ast.Call)
                    and "cache" in (self.dotted(node.value.func.func) or "")
                ):  # plan = lru_cache(maxsize=64)(Plan)
                    self.cached.add(node.targets[0].id)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
                if any(re.search(r"functools\.(lru_)?cache$", self.dotted(d) or "") for d in decorators):
                    self.cached.add(node.name)
        for _ in range(3):  # id -> key -> (key, shape)
            for node in ast.walk(tree):
                if isinstance(node, (ast.Assign, ast.NamedExpr)) and self.is_identity(node.value):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    self.identities |= {t.id for t in targets if isinstance(t, ast.Name)}

    def dotted(self, node: ast.AST) -> str | None:
        """Finds an expression's full dotted name: `torch.cuda.Event` for `t.Event` after `import torch.cuda as t`."""
        if isinstance(node, ast.Name):
            if node.id in self.names:
                return self.names[node.id]
            return f"builtins.{node.id}" if hasattr(builtins, node.id) else node.id
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return base and f"{base}.{node.attr}"
        if isinstance(node, ast.Call) and node.args:
            called = self.dotted(node.func)
            if called in ("builtins.__import__", "importlib.import_module"):
                return fold(node.args[0])
            if called == "builtins.getattr" and len(node.args) > 1:
                base, name = self.dotted(node.args[0]), fold(node.args[1])
                return f"{base}.{name}" if base and name else None
        if isinstance(node, ast.Subscript) and self.dotted(node.value) == "sys.modules":
            return fold(node.slice)
        return None

    # -- identity caches ---------------------------------------------------------------------------------------

    def is_identity(self, node: ast.AST) -> bool:
        """Tells whether the value is, or contains, an id or a tensor's address."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id in self.identities:
                return True
            if isinstance(inner, ast.Call) and (
                self.dotted(inner.func) == "builtins.id"
                or isinstance(inner.func, ast.Attribute)
                and inner.func.attr in ("data_ptr", "untyped_storage", "_cdata")
            ):
                return True
            if isinstance(inner, ast.Attribute) and inner.attr == "data_ptr" and isinstance(inner.ctx, ast.Load):
                return True
        return False

    def key(self, node: ast.AST, where: ast.expr | ast.stmt, how: str) -> None:
        if self.is_identity(node):
            self.report(where, "identity-cache", "error", f"{how} an id or an address: equal ones may hold other data")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.slice, ast.Slice):
            self.key(node.slice, node, "looks up")
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key in node.keys:
            if key is not None:
                self.key(key, key, "makes a key of")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        constant = [isinstance(o, (ast.Constant, ast.UnaryOp)) for o in operands]
        for operator, left, right in zip(node.ops, range(len(operands)), range(1, len(operands))):
            if isinstance(operator, (ast.In, ast.NotIn)):
                self.key(operands[left], node, "looks up")
            elif isinstance(operator, (ast.Eq, ast.NotEq)) and not constant[left] and not constant[right]:
                self.key(operands[left], node, "remembers and compares")
                self.key(operands[right], node, "remembers and compares")
            elif isinstance(operator, (ast.Is, ast.IsNot)) and not constant[left] and not constant[right]:
                self.report(node, "identity-cache", "warning", "asks whether two objects are the same one")
        self.generic_visit(node)

    # -- imports -----------------------------------------------------------------------------------------------

    def check_module(self, name: str | None, node: ast.expr | ast.stmt) -> None:
        top = (name or "").partition(".")[0]
        if top in HARNESS:
            self.report(node, "harness", "error", f"imports the grader's module {top}")
        elif node in self.guarded or top in IMAGE | TASK | {"pip", "ensurepip"}:
            return  # installers are reported as such
        elif top in REMOVED:
            self.report(node, "import", "error", f"Python 3.13, the grader's, has no module {top}")
        elif top not in sys.stdlib_module_names:
            self.report(node, "import", "error", f"the grader's image has no package {top}")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.check_module(alias.name, node)
            self.check_use(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level:
            self.report(node, "import", "error", "a submission is a single file: there is no package to import from")
            return
        self.check_module(node.module, node)
        for alias in node.names:
            self.check_use(node, f"{node.module}.{alias.name}")

    # -- uses --------------------------------------------------------------------------------------------------

    def check_use(self, node: ast.expr | ast.stmt, name: str | None) -> None:
        for rule, severity, pattern, message in USES:
            if name and pattern.fullmatch(name):
                self.report(node, rule, severity, f"{name} {message}")
                return

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.check_use(node, self.dotted(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node in self.judged:
            return
        name = self.dotted(node)
        if node.attr in FRAME_ATTRIBUTES:
            self.report(node, "frame-walk", "error", f".{node.attr} looks into a frame")
        elif node.attr in CODE_ATTRIBUTES and isinstance(node.ctx, ast.Load):
            self.report(node, "patching", "warning", f".{node.attr} is the inside of a function")
        if name and isinstance(node.ctx, ast.Load):
            before = len(self.findings)
            self.check_use(node, name)
            if len(self.findings) > before:
                return  # once for torch.cuda.graphs.x, not again for torch.cuda.graphs
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self.dotted(node.func) or ""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if name in ("builtins.exec", "builtins.eval"):
            encoded = any(
                isinstance(inner, ast.Call) and DECODERS.fullmatch(self.dotted(inner.func) or "")
                for argument in arguments
                for inner in ast.walk(argument)
            )
            severity, what = ("error", "encoded text") if encoded else ("warning", "text as code")
            self.report(node, "dynamic-code", severity, f"{name[9:]} runs {what}")
        elif name in ("builtins.__import__", "importlib.import_module"):
            module = fold(node.args[0]) if node.args else None
            if module is None:
                self.report(node, "dynamic-code", "warning", "imports a module whose name cannot be read here")
            else:
                self.check_module(module, node)
        elif name == "builtins.getattr" and (resolved := self.dotted(node)):
            self.check_use(node, resolved)
        elif name in ("builtins.setattr", "builtins.delattr") and len(node.args) > 1:
            self.check_patch(node, f"{self.dotted(node.args[0]) or ''}.{fold(node.args[1]) or '?'}")
        elif PROCESSES.fullmatch(name):
            text = " ".join(fold(inner) or "" for argument in arguments for inner in ast.walk(argument))
            if INSTALLERS.search(text):
                self.report(node, "install", "error", f"{name} installs or downloads at run time")
            else:
                self.report(node, "process", "warning", f"{name} starts another process")
        elif name == "torch.compile" and any(fold(argument) in GRAPH_MODES for argument in arguments):
            self.report(node, "graph", "error", "this mode of torch.compile captures launches in a graph")
        if isinstance(node.func, ast.Attribute) and node.args and node.func.attr in ("get", "setdefault", "pop", "add"):
            self.key(node.args[0], node, "looks up")
        if isinstance(node.func, ast.Name) and node.func.id in self.cached:
            for argument in arguments:
                self.key(argument, node, "remembers results by")
        self.generic_visit(node)

    # -- patches -----------------------------------------------------------------------------------------------

    def check_patch(self, node: ast.expr | ast.stmt, target: str) -> None:
        top = target.partition(".")[0]
        known = top in IMAGE | TASK | HARNESS or top in sys.stdlib_module_names
        if known and not target.startswith(SETTINGS):
            self.report(node, "patching", "error", f"replaces {target}")

    def visit_target(self, target: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for inner in target.elts:
                self.visit_target(inner)
        elif isinstance(target, ast.Attribute):
            if target.attr in CODE_ATTRIBUTES:
                self.report(target, "patching", "error", f"replaces the {target.attr} of a function")
            else:
                self.check_patch(target, self.dotted(target) or "")
        elif isinstance(target, ast.Subscript):
            base = target.value
            if isinstance(base, ast.Attribute) and base.attr == "__dict__":
                self.check_patch(target, f"{self.dotted(base.value) or ''}.{fold(target.slice) or '?'}")
            elif isinstance(base, ast.Call) and self.dotted(base.func) == "builtins.vars" and base.args:
                self.check_patch(target, f"{self.dotted(base.args[0]) or ''}.{fold(target.slice) or '?'}")
            elif self.dotted(base) == "sys.modules":
                self.judged.add(base)
                self.report(target, "patching", "error", f"replaces the module {fold(target.slice) or '?'}")
            elif isinstance(base, ast.Attribute) and base.attr == "__globals__":
                self.report(target, "patching", "error", "replaces a global of another module")

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.visit_target(target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit_target(node.target)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self.visit_target(target)
        self.generic_visit(node)

    # -- text --------------------------------------------------------------------------------------------------

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node not in self.documentation:
            for rule, pattern, message in NATIVE:
                if match := pattern.search(node.value):
                    self.report(node, rule, "error", f"'{match.group()}' {message}")

    def visit(self, node: ast.AST) -> None:
        """Visits a node; also finds the forbidden word where it is put together from pieces."""
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant) and node not in self.judged:
            text = fold(node)
            if text and FORBIDDEN_WORD in text.lower():
                self.report(node, "hidden-word", "error", f"puts '{text}' together, a word that may not appear")
                self.judged.update(ast.walk(node))
        super().visit(node)


def joined(between: str, parts: list[str | None]) -> str | None:
    """Joins parts; None if one of them is not known."""
    known = [part for part in parts if part is not None]
    return between.join(known) if len(known) == len(parts) else None


def fold(node: ast.AST) -> str | None:
    """Computes the string that an expression of constants makes, if it is plain enough to be read; else None."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = fold(node.left), fold(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.JoinedStr):
        parts = [fold(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values]
        return joined("", parts)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        text, step = fold(node.value), node.slice.step
        if text and isinstance(step, ast.UnaryOp) and isinstance(step.op, ast.USub) and not node.slice.lower:
            return text[::-1]
    if isinstance(node, ast.Call) and len(node.args) == 1:
        (argument,) = node.args
        if isinstance(node.func, ast.Name) and node.func.id == "chr" and isinstance(argument, ast.Constant):
            return chr(argument.value) if isinstance(argument.value, int) else None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "join":
            between = fold(node.func.value)
            if between is not None and isinstance(argument, (ast.List, ast.Tuple)):
                return joined(between, [fold(part) for part in argument.elts])
    return None


def review(tree: ast.Module) -> list[Finding]:
    """Applies all rules above, and looks for the entry point: the findings."""
    findings = Review(tree).findings
    kernels = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "custom_kernel"]
    assigned = any(isinstance(n, ast.Name) and n.id == "custom_kernel" for n in ast.walk(tree))
    if not kernels and not assigned:
        findings.append(Finding(0, 0, "interface", "error", "there is no function custom_kernel"))
    for node in kernels:
        required = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
        if required != 1 or any(default is None for default in node.args.kw_defaults):
            place = node.lineno, node.col_offset + 1
            findings.append(Finding(*place, "interface", "error", "custom_kernel must take one argument, data"))
    return findings
