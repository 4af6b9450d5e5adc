"""Lists what `python eval.py check` can say about a submission: rules, and where each comes from."""

import dataclasses

BOT = "https://github.com/gpu-mode/kernelbot/blob/4bdd839ad76eaac0cdab986d30f8d77f989a289b/src"
REVIEW = "https://github.com/gpu-mode/kernelguard/blob/6797d26ddb52f4a7f8d6020af317eda9291359fc/kernelguard.py"

RULES = {  # rule -> its public source
    "size": f"{BOT}/kernelbot/api/api_utils.py#L254",
    "encoding": f"{BOT}/kernelbot/api/api_utils.py#L286",
    "extension": f"{BOT}/libkernelbot/submission.py#L64",
    "header": f"{BOT}/libkernelbot/submission.py#L173",
    "forbidden-word": f"{BOT}/kernelbot/api/api_utils.py#L272",
    "hidden-word": f"{REVIEW}#L3886",
    "syntax": f"{BOT}/libkernelbot/run_eval.py#L740",
    "interface": "https://github.com/gpu-mode/reference-kernels/tree/main/problems/nvidia/nvfp4_group_gemm",
    "import": f"{BOT}/runners/modal_runner.py#L43",
    "install": f"{REVIEW}#L3938",
    "process": f"{REVIEW}#L3990",
    "second-queue": f"{BOT}/kernelbot/api/api_utils.py#L272",
    "graph": f"{REVIEW}#L3918",
    "graph-word": f"{BOT}/kernelbot/api/api_utils.py#L272",
    "identity-cache": f"{REVIEW}#L8647",
    "frame-walk": f"{REVIEW}#L4438",
    "dynamic-code": f"{REVIEW}#L7631",
    "patching": f"{REVIEW}#L1102",
    "harness": f"{REVIEW}#L4944",
    "dsl-api": f"{BOT}/runners/modal_runner.py#L68",
    "compile": f"{BOT}/libkernelbot/run_eval.py#L740",
    "compile-time": f"{BOT}/libkernelbot/consts.py#L6",
    "review": f"{BOT}/libkernelbot/kernelguard.py",
}


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """Says one thing that was found. severity: an error is refused, a warning may be. line, column: from 1; 0 is the
    whole file."""

    line: int
    column: int
    rule: str
    severity: str  # error | warning
    message: str

    def __post_init__(self):
        assert self.rule in RULES and self.severity in ("error", "warning")

    @property
    def link(self) -> str:
        return RULES[self.rule]
