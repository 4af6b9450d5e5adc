"""Does `python eval.py check`: finds what popcorn, the bot or the automatic review would refuse, before uploading.

Sources are in findings.py. The bot reads the header only in the leading comment block, popcorn-cli in all lines: a
directive elsewhere is an error. What needs the bot's database (deadline, rate limit, bans) is not checked.
"""

import ast
import contextlib
import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from evaluation.upload.compile_time import check_compile_time
from evaluation.upload.dsl_api import check_dsl
from evaluation.upload.findings import Finding
from evaluation.upload.review import FORBIDDEN_WORD, review
from reference import GROUP_GEMM, TASKS, Task

MAX_BYTES = 1_000_000
REVIEW_S = 300  # https://github.com/gpu-mode/kernelbot/blob/4bdd839a/src/libkernelbot/kernelguard.py#L14
EXTENSIONS = (".py", ".cu", ".cuh", ".cpp")
# Problems on Blackwell boards: https://github.com/gpu-mode/reference-kernels/blob/f83cb92a/problems/nvidia.yaml
LEADERBOARDS = {
    "nvfp4_group_gemm": {"B200", "NVIDIA"},
    "nvfp4_gemv": {"NVIDIA"},
    "nvfp4_gemm": {"NVIDIA"},
    "nvfp4_dual_gemm": {"NVIDIA"},
    "modal_nvfp4_dual_gemm": {"B200"},
}
# Leaderboards of this repository's tasks -> the task
TASK_OF = {name: name for name in TASKS} | {"modal_nvfp4_dual_gemm": "nvfp4_dual_gemm"}
DIRECTIVES = ("#!POPCORN", "//!POPCORN")
GRAPH = "entrants report that the bot refuses files with this word, in comments, too; its published source does not"
BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"


def read_file(path: Path) -> bytes:
    """Reads a regular file. Raises OSError, for a pipe, too: reading that would never end."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file")
    return path.read_bytes()


def check_file(name: str, content: bytes) -> list[Finding]:
    """Checks name, size and encoding."""
    findings = []

    def error(rule, message):
        findings.append(Finding(0, 0, rule, "error", message))

    if not name.endswith(EXTENSIONS):
        error("extension", f"{name}: the bot takes only {', '.join(EXTENSIONS)}")
    elif not name.endswith(".py"):
        error("extension", f"{name}: the task imports the submission as Python, it has to be a .py file")
    if not content:
        error("size", "the file is empty")
    if len(content) > MAX_BYTES:
        error("size", f"{len(content):,} bytes; the bot takes at most {MAX_BYTES:,}")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = content[: problem.start].count(b"\n") + 1
        column = problem.start - (content.rfind(b"\n", 0, problem.start) + 1) + 1
        findings.append(Finding(line, column, "encoding", "error", f"not UTF-8: {problem.reason}"))
    return findings


def header_finding(line: int, severity: str, message: str) -> Finding:
    return Finding(line, 1, "header", severity, message)


@dataclasses.dataclass
class Directive:
    """A line `#!POPCORN KEY VALUES`. number: of the line, 1 for the first; leading: only comments stand before it."""

    number: int
    leading: bool
    key: str
    values: list[str]

    def problem(self, known: set[str]) -> str:
        """Say why it does not count, or "". known: keys that have a value already."""
        if not self.leading:
            return "not in the leading comment block: the bot ignores it, popcorn-cli does not"
        if self.key not in ("leaderboard", "gpus"):
            return f"unknown directive '{self.key}': there are leaderboard and gpu"
        if not self.values:
            return f"the directive {self.key} has no value"
        return f"second value for {self.key}" if self.key in known else ""


def directives(text: str) -> list[Directive | Finding]:
    """Reads all directives, and finds lines that look like one."""
    found: list[Directive | Finding] = []
    leading = True
    for number, line in enumerate(text.splitlines(), 1):
        leading = leading and line.startswith(("#", "//"))
        words = line.split()
        if words and words[0] in DIRECTIVES and line.startswith(DIRECTIVES):
            key = words[1].lower() if len(words) > 1 else ""
            found.append(Directive(number, leading, "gpus" if key == "gpu" else key, words[2:]))
        elif re.match(r"\s*(#|//)\s*!\s*popcorn\b", line, re.IGNORECASE):
            message = "looks like a directive, but only #!POPCORN at the start of a line is one"
            found.append(header_finding(number, "warning", message))
    return found


def check_header(text: str, any_board: bool = False) -> list[Finding]:
    """Looks for `#!POPCORN leaderboard NAME` and `#!POPCORN gpu NAME`, once each, in the leading comment lines.

    any_board: values may be any.
    """
    findings: list[Finding] = []
    counted: dict[str, Directive] = {}
    if text.startswith(BOM):  # which Python skips, and neither the bot nor popcorn-cli
        message = "the file starts with a byte order mark: a directive in its first line is not seen"
        findings.append(header_finding(1, "warning", message))
    for found in directives(text):
        if isinstance(found, Finding):
            findings.append(found)
        elif problem := found.problem({*counted}):
            findings.append(header_finding(found.number, "error", problem))
        else:
            counted[found.key] = found
    return findings + check_values(counted, any_board)


def check_values(counted: dict[str, Directive], any_board: bool) -> list[Finding]:
    """Looks up the leaderboard and the GPU that the directives name."""
    findings, board, gpus = [], counted.get("leaderboard"), counted.get("gpus")
    if board is None:
        names = "NAME" if any_board else " or ".join(TASKS)
        findings.append(header_finding(0, "warning", f"no leaderboard: popcorn needs --leaderboard {names}"))
    name = board.values[0] if board else GROUP_GEMM.name
    if board and len(board.values) > 1:
        message = f"only '{name}' counts, the rest of the line is ignored"
        findings.append(header_finding(board.number, "warning", message))
    if board and any_board:
        return findings
    if board and name not in LEADERBOARDS:
        findings.append(header_finding(board.number, "error", f"unknown leaderboard '{name}'"))
    elif board and name not in TASK_OF:
        message = f"this is the leaderboard of another problem; those of these tasks are {', '.join(TASK_OF)}"
        findings.append(header_finding(board.number, "error", message))
    if gpus:
        known = LEADERBOARDS.get(name, LEADERBOARDS[GROUP_GEMM.name])
        lacks = f"the leaderboard has no GPU '{{}}': {', '.join(sorted(known))}"
        findings += [header_finding(gpus.number, "error", lacks.format(gpu)) for gpu in gpus.values if gpu not in known]
        if len(gpus.values) > 1:
            findings.append(header_finding(gpus.number, "warning", "popcorn-cli takes the first GPU only"))
    return findings


def leaderboard_of(path: Path) -> str | None:
    """Finds the leaderboard that the file's header names; None if it names none, or cannot be read."""
    with contextlib.suppress(OSError):
        for line in read_file(path).decode(errors="replace").splitlines():
            words = line.split()
            if line.startswith(DIRECTIVES) and len(words) > 2 and words[1].lower() == "leaderboard":
                return words[2]
    return None


def task_of_file(path: Path) -> Task:
    """Finds the task whose leaderboard the file's header names; the group GEMM if it names none of these."""
    return TASKS.get(TASK_OF.get(leaderboard_of(path) or "", ""), GROUP_GEMM)


def check_word(text: str) -> list[Finding]:
    """Finds every place of the word that the bot looks for in the lower-cased file, comments included."""
    return [
        Finding(number, match.start() + 1, "forbidden-word", "error", f"'{match.group()}' refuses the whole file")
        for number, line in enumerate(text.split("\n"), 1)
        for match in re.finditer(FORBIDDEN_WORD, line, re.IGNORECASE)
    ]


def check_graph(text: str, known: list[Finding]) -> list[Finding]:
    """Finds the word "graph" unless a graph has been refused already. The bot's published source lets it pass, and
    KernelGuard refuses only some captures; entrants of the linear-algebra contests report a scan that refuses it."""
    if any(f.rule == "graph" for f in known):
        return []
    return [
        Finding(number, match.start() + 1, "graph-word", "warning", GRAPH)
        for number, line in enumerate(text.split("\n"), 1)
        if (match := re.search("graph", line, re.IGNORECASE))
    ]


def check_spelling(text: str, tree: ast.Module) -> list[Finding]:
    """Finds the word in a string whose source does not show it: escapes, literals side by side.

    The bot and KernelGuard search the text and let these pass (tried with kernelguard 0.3.1); a reviewer may not.
    """
    findings = []
    for node in (x for x in ast.walk(tree) if isinstance(x, ast.Constant)):
        value = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        spelt = isinstance(value, str) and FORBIDDEN_WORD in value.lower()
        if spelt and FORBIDDEN_WORD not in (ast.get_source_segment(text, node) or "").lower():
            message = "spells the forbidden word so that the bot does not see it"
            findings.append(Finding(node.lineno, node.col_offset + 1, "hidden-word", "warning", message))
    return findings


def read_tree(text: str) -> list[Finding]:
    """Finds what can be read off the syntax tree."""
    tree = ast.parse(text)
    return review(tree) + check_dsl(tree) + check_spelling(text, tree)


def deeply(function: Callable[[], list[Finding]]) -> list[Finding]:
    """Calls function() with room for any tree that Python compiles: a sum of a thousand terms is that many nodes
    deep."""
    outcome, limit = [], sys.getrecursionlimit()

    def work():
        try:
            outcome.extend(function())
        except (RecursionError, MemoryError):
            message = "nested too deeply to be reviewed here; Python compiles it"
            outcome.append(Finding(0, 0, "syntax", "warning", message))

    stack = threading.stack_size(2**29)
    sys.setrecursionlimit(10**5)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(stack)
    return outcome


def review_available() -> bool:
    return importlib.util.find_spec("kernelguard") is not None


def check_automatic_review(text: str) -> list[Finding]:
    """Asks KernelGuard, which the bot runs before it benchmarks; finds nothing where it is not installed."""
    if not review_available():
        return []
    command = [sys.executable, "-m", "kernelguard", "--api-mode"]
    with tempfile.TemporaryDirectory() as empty:
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=REVIEW_S, cwd=empty)
        except subprocess.TimeoutExpired:
            return [
                Finding(0, 0, "review", "error", f"KernelGuard was not done after {REVIEW_S} s, as the bot demands")
            ]
    try:
        result = json.loads(done.stdout.splitlines()[-1])
        filtered, patterns = result["should_filter"], result["matched_patterns"]
    except (IndexError, ValueError, KeyError, TypeError):
        message = f"KernelGuard gave no verdict (exit code {done.returncode}): {done.stderr[-200:].strip()}"
        return [Finding(0, 0, "review", "error", message)]
    findings = []
    for found in patterns:
        message = f"KernelGuard, {result['classification']}: {found['pattern']}: {found.get('evidence', '')}"
        severity = "error" if filtered else "warning"
        findings.append(Finding(0, 0, "review", severity, message[:300]))
    if filtered and not findings:
        findings.append(Finding(0, 0, "review", "error", f"KernelGuard refuses it: {result.get('filter_reason')}"))
    return findings


def check(
    path: Path, cases: list[str] | None = None, any_board: bool = False,
    done: Callable[[int], None] = lambda index: None,
) -> tuple[list[Finding], dict[str, float]]:  # fmt: skip
    """Finds everything, in the order of the file; also returns the seconds by section. cases: as of
    compile_time.measure, None to compile nothing. any_board: the header may name any. done: of check_compile_time.
    Raises OSError if the file cannot be read.
    """
    content = read_file(path)
    findings = check_file(path.name, content)
    if any(f.rule == "encoding" for f in findings) or not content:
        return findings, {}
    text = content.decode("utf-8")
    findings += check_header(text, any_board) + check_word(text)
    text = text.removeprefix(BOM)
    try:
        with contextlib.suppress(RecursionError):  # its objects are nested deeper than the compiler's
            ast.parse(text)
        compile(text, path.name, "exec", dont_inherit=True)  # as the import will
    except (SyntaxError, ValueError) as error:
        place = getattr(error, "lineno", 0) or 0, getattr(error, "offset", 0) or 0
        return sorted({*findings, Finding(*place, "syntax", "error", getattr(error, "msg", None) or str(error))}), {}
    except (RecursionError, MemoryError):  # how Python's compiler reports it
        return sorted({*findings, Finding(0, 0, "syntax", "error", "nested too deeply for Python to compile")}), {}
    findings += deeply(lambda: read_tree(text)) + check_automatic_review(text)
    findings += check_graph(text, findings)
    spent: dict[str, float] = {}
    # What may patch the evaluator or start processes is not run.
    if cases is not None and not any(f.severity == "error" for f in findings):
        timings, spent = check_compile_time(path, cases, done=done)
        findings += timings
    return sorted(set(findings)), spent
