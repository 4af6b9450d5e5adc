"""Reads a task of others, in whichever of the known forms it is."""

from pathlib import Path

from evaluation.tasks.flashinfer import Definition
from evaluation.tasks.folder import TaskFolder
from evaluation.tasks.kernelbench import KernelBench
from evaluation.tasks.others import OthersTask

FORMS = "a folder of reference-kernels' form, a .py file of KernelBench's, a .json definition of FlashInfer-Bench's"


def read(path: str) -> OthersTask:
    """Reads the task at a path. Raises ValueError, with one sentence, if there is no task."""
    where = Path(path)
    if where.is_dir():
        if not (where / "task.yml").exists():
            raise ValueError(f"{path} is no task: it has no task.yml; a task is {FORMS}")
        return TaskFolder.read(path)
    kind = {".py": KernelBench, ".json": Definition}.get(where.suffix)
    if kind is None or not where.is_file():
        what = "there is nothing there" if not where.exists() else "its form is not known"
        raise ValueError(f"{path} is no task: {what}; a task is {FORMS}")
    return kind.read(path)
