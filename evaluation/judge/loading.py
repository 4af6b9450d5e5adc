"""Imports a submission, and says in a line or a few what it raised."""

import importlib.util
import re
import sys
import traceback

from evaluation.tasks.entry import KERNEL, entry
from evaluation.tasks.modules import OURS

# What CuTe DSL writes into its errors: colours, and a whole MLIR operation behind the one sentence. What torch's builds
# do: their commands before what the compiler says
NOISE = re.compile(
    r"\x1b\[[0-9;]*m|\n[^\n]*see current operation:.*|(?<=': )\[\d+/\d+\] .*?\nFAILED: [^\n]*\n[^\n]*\n", re.DOTALL
)


def load_submission(path: str, told=KERNEL):
    """Imports the file as the module `submission`; returns the function of a call's data that an entry tells
    (../tasks/entry.py), by default its custom_kernel. Raises what the file raises."""
    spec = importlib.util.spec_from_file_location("submission", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    return entry(module, told)


def explain(error: BaseException) -> str:
    """Says in a line or a few what was raised, and where in the submission: the line, and those that called it.

    What CuTe DSL raises while it compiles stands for an error in a kernel, whose line is that one's.
    """
    own = getattr(sys.modules.get("submission"), "__file__", None)
    raised: BaseException | None = error
    frames: list[traceback.FrameSummary] = []
    while raised is not None:
        frames += [f for f in traceback.extract_tb(raised.__traceback__) if f.filename == own]
        of_dsl = type(raised).__module__.partition(".")[0] == "cutlass"
        raised = (raised.__cause__ or raised.__context__) if of_dsl else None
    where = ""
    if frames:
        *callers, last = frames
        where = "".join(f", from line {caller.lineno}" for caller in callers[:-4:-1])
        where = f" (line {last.lineno} of the submission, in {last.name}{where})"
    text = NOISE.sub("", str(error))
    if isinstance(error, ImportError) and error.name in OURS:
        text = f"{text.partition(' (')[0]}: its {error.name}.py is the task's; no file beside a submission goes with it"
    elif isinstance(error, ModuleNotFoundError) and error.name:
        text = f"{text}, which is not installed here" + "; a submission without it is judged" * bool(frames)
    return f"{type(error).__name__}: {text}{where}"
