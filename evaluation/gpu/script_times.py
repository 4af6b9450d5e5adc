"""Times the kernels of a script on this machine's GPU: `python -m evaluation.gpu.script_times SCRIPT OUT`.

Runs it under torch.profiler, whose CUPTI sees every kernel of the process, whoever launched it; OUT gets JSON:
[[kernel, microseconds], ...] in the order of their starts. The exit code is the script's.
"""

import json
import runpy
import sys
from pathlib import Path

COPIES = "Memcpy", "Memset"


def kernels(events) -> list[list]:
    """Picks the kernels among torch.profiler's events: [name, microseconds], by start."""
    found = [event for event in events if event.device_type.name == "CUDA" and not event.name.startswith(COPIES)]
    found.sort(key=lambda event: event.time_range.start)
    return [[event.name, event.time_range.elapsed_us()] for event in found]


def main(script: str, out: str) -> None:
    import torch

    sys.argv = [script]
    sys.path[0] = str(Path(script).resolve().parent)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        runpy.run_path(script, run_name="__main__")
        torch.cuda.synchronize()
    Path(out).write_text(json.dumps(kernels(profile.events())))


if __name__ == "__main__":
    main(*sys.argv[1:3])
