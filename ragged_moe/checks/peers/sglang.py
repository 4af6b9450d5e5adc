"""SGLang's MoeRunner, with the adapter's core in it: its wheel has no tests of experts, so that those are ours.

Its runner, its dispatchers' tuples and its configs are its own Python. Two enumerations of it are too deep for that.
"""

import importlib
from pathlib import Path

PACKAGES = ("sglang", "sgl_kernel", "deep_gemm", "deep_ep")
TESTS = (str(Path(__file__).with_name("sglang_layer.py")),)
MOE = "sglang.srt.layers.moe"
OWN = (
    *(f"{MOE}.moe_runner.{x}" for x in ("base", "runner", "deep_gemm")),
    *(f"{MOE}.token_dispatcher.{x}" for x in ("base", "standard", "deepep")), f"{MOE}.topk",
)  # fmt: skip
FIXTURES = None


class Backend:
    """A runner's, or an exchange's, by its name: it is that, and no other."""

    def __init__(self, value: str):
        self.value = value

    def __getattr__(self, name: str):
        if not name.startswith("is_"):
            raise AttributeError(name)
        return lambda: name == f"is_{self.value}"


def served() -> dict[str, object]:
    """Everything that is found under these names, wherever in the package it is looked for."""
    return {
        "get_moe_runner_backend": lambda: Backend("auto"), "get_moe_a2a_backend": lambda: Backend("none"),
        "resolve_moe_runner_backend": Backend, "is_cuda": lambda: True, "is_npu": lambda: False,
        "Backend": Backend,
    }  # fmt: skip


def own(names: dict[str, object]) -> None:
    """Add what the modules have that packages give again."""
    for module in OWN:
        public = vars(importlib.import_module(module))
        names.update({name: x for name, x in public.items() if not name.startswith("_") and name not in names})
