"""What vLLM and SGLang call in each of their processes, by the wheel's entry points `ragged_moe`.

Whoever installs the wheel has not asked for other experts yet: nothing changes unless the server's own list of plugins
names ragged_moe. Only where vLLM has a registry of backends is one added, which takes effect when it is asked for.
"""

import importlib
import os
from collections.abc import Callable

NAME = "ragged_moe"
CLASSES = "ragged_moe.integrations.vllm.Fp8Experts", "ragged_moe.integrations.vllm.Fp8BatchedExperts"


def vllm() -> None:
    """Register the backend `--moe-backend ragged_moe`, where vLLM has a registry. Elsewhere, if VLLM_PLUGINS names
    ragged_moe, put its experts before Triton's.
    """
    register = vllm_registry()
    if register is not None:
        register(NAME, CLASSES)
    elif is_named("VLLM_PLUGINS"):
        importlib.import_module("ragged_moe.integrations.vllm").enable()


def sglang() -> None:
    """If SGLANG_PLUGINS names ragged_moe, make its runner core that of `--moe-runner-backend deep_gemm`."""
    if is_named("SGLANG_PLUGINS"):
        importlib.import_module("ragged_moe.integrations.sglang").enable()


def vllm_registry() -> Callable | None:
    """vLLM's register_fp8_moe_backend(name, paths of classes), which imports these when they are asked for; None where
    it has none: https://github.com/vllm-project/vllm/pull/53897.
    """
    try:
        oracle = importlib.import_module("vllm.model_executor.layers.fused_moe.oracle")
    except ImportError:
        return None
    return getattr(oracle, "register_fp8_moe_backend", None)


def is_named(variable: str) -> bool:
    """Whether a server's list of plugins, in the environment, names this one."""
    return NAME in [x.strip() for x in os.environ.get(variable, "").split(",")]
