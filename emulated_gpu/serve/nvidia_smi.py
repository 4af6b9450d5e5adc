"""`nvidia-smi` of the emulated machine, for what `run` starts: -L, -q, --query-gpu=... --format=csv, or a short table.

What it does not know is refused by name, with exit status 2: nothing here has a temperature or a clock that changes.
"""

from __future__ import annotations

import sys

from ..chip import CHIPS, Chip
from .run import Options

DRIVER, CUDA = "580.0", "13.0"  # the driver's branch that CUDA 13.0 comes with
MIB = 2**20


def uuid(index: int) -> str:
    """Return what nvidia-smi calls a device: as cuDeviceGetUuid, which has its number."""
    return f"GPU-00000000-0000-0000-0000-{index:012x}"


def fields(chip: Chip, index: int, count: int) -> dict[str, tuple[str, str]]:
    """Return the fields of --query-gpu: (value, unit)."""
    memory_clock = str(chip.memory_clock_khz // 1000), "MHz"
    return {
        "index": (str(index), ""), "count": (str(count), ""), "name": (chip.name, ""), "gpu_name": (chip.name, ""),
        "uuid": (uuid(index), ""), "gpu_uuid": (uuid(index), ""), "driver_version": (DRIVER, ""),
        "compute_cap": (".".join(map(str, chip.capability)), ""),
        "memory.total": (str(chip.memory // MIB), "MiB"), "memory.free": (str(chip.memory // MIB), "MiB"),
        "memory.used": ("0", "MiB"), "pci.bus_id": (f"00000000:{index:02X}:00.0", ""),
        "clocks.max.sm": (str(chip.clock_khz // 1000), "MHz"),
        "clocks.max.memory": memory_clock, "clocks.max.mem": memory_clock,
    }  # fmt: skip


def query(names: list[str], form: list[str], devices: list[dict]) -> list[str]:
    """Return the lines of --query-gpu. Raises LookupError for a field or a format that is not known."""
    if "csv" not in form or not set(form) <= {"csv", "noheader", "nounits"}:
        raise LookupError(f"--format={','.join(form)}")
    if unknown := [name for name in names if name not in devices[0]]:
        raise LookupError(f"the field {unknown[0]}")
    head = [name + f" [{devices[0][name][1]}]" * bool(devices[0][name][1]) for name in names]
    parts = slice(1 if "nounits" in form else 2)
    rows = [[" ".join(device[name][parts]).strip() for name in names] for device in devices]
    return [", ".join(row) for row in [head, *rows]["noheader" in form :]]


def answer(arguments: list[str], chip: Chip, count: int) -> list[str]:
    """Return the lines for these arguments. Raises LookupError with what is not known."""
    devices = [fields(chip, index, count) for index in range(count)]
    words = [word for argument in arguments for word in argument.split("=", 1)]
    wanted = {name: values.replace(" ", "").split(",") for name, values in zip(words[::2], words[1::2])}
    chosen = wanted.pop("-i", None) or wanted.pop("--id", [str(i) for i in range(count)])
    if wanted.keys() == {"--format", "--query-gpu"} and len(words) % 2 == 0:
        if unknown := {*chosen} - {str(i) for i in range(count)}:
            raise LookupError(f"device {unknown.pop()}")
        return query(wanted["--query-gpu"], wanted["--format"], [devices[int(i)] for i in chosen])
    if words in (["-L"], ["--list-gpus"]):
        return [f"GPU {i}: {chip.name} (UUID: {uuid(i)})" for i in range(count)]
    if words in (["-q"], ["--query"]):
        head = [f"Driver Version : {DRIVER}", f"CUDA Version : {CUDA}", f"Attached GPUs : {count}"]
        return head + [f"    {name} : {' '.join(one).strip()}" for device in devices for name, one in device.items()]
    if not words:
        title = f"NVIDIA-SMI (emulated)   Driver Version: {DRIVER}   CUDA Version: {CUDA}"
        return [title, *(f"{i}  {chip.name}  {one['memory.total'][0]}MiB" for i, one in enumerate(devices))]
    raise LookupError(" ".join(arguments))


if __name__ == "__main__":
    options = Options.of_environment()
    try:
        print("\n".join(answer(sys.argv[1:], CHIPS[options.machine], options.devices)))
    except LookupError as what:
        print(f"emulated-gpu: nvidia-smi does not know {what.args[0]} here", file=sys.stderr)
        sys.exit(2)
