"""Where a submission keeps its Configs: names that the tools for whoever writes one rely on.

`Config` is a dataclass, `CONFIG_MAP` has the Config of a case by ((M of each group), N, K), or several in a tuple, best
guess first, among which the submission chooses by itself on a GPU. Other cases run on `DEFAULT`. The dual GEMM has
`DUAL_CONFIG_MAP`, by (M, N, K), and `DUAL_DEFAULT`. `plan` and `dual_plan`, if there are such, are caches.
"""

from collections.abc import Iterator

import reference


def names(args: dict) -> tuple[str, str, tuple]:
    """Names of the table and of the default for a case of this kind, and what the table knows it by."""
    if reference.task_of(args) is reference.DUAL_GEMM:
        return "DUAL_CONFIG_MAP", "DUAL_DEFAULT", (args["m"], args["n"], args["k"])
    return "CONFIG_MAP", "DEFAULT", (tuple(args["m"]), args["n"][0], args["k"][0])


def each_other(module, args: dict) -> Iterator[None]:
    """Makes each further Config that the submission has for a case its only one, in turn, then all as they were."""
    table_name, _, key = names(args)
    table = getattr(module, table_name, None)
    configs = table.get(key) if isinstance(table, dict) else None
    if not isinstance(configs, tuple):
        return
    for config in configs[1:]:
        table[key] = (config,)
        for remembered in (getattr(module, name, None) for name in ("plan", "dual_plan")):
            getattr(remembered, "cache_clear", lambda: None)()
        yield
    table[key] = configs
