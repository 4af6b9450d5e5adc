"""The limits of a chip that launches, allocations and answers to host code go by: machines/*.toml, a file each.

Each value there has its source; "inferred" begins that of a value which nobody has published or measured.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import Unsupported

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "machines"
SYSTEM_SHARED = 1024  # bytes of shared memory that the system takes from each CTA
# cuda_occupancy.h of CUDA: in which portions a CTA gets shared memory and a warp gets registers
SHARED_PORTION, WARP_REGISTERS = 128, 256
QUARTERS = 4  # of an SM: each has a quarter of the registers, and no warp lies in two


@dataclass(frozen=True)
class Chip:
    """Sizes in bytes. machine: the name of its file, what `--machine` takes. arch: what is compiled for it.

    shared_per_cta: the most that a kernel can opt in to. Clocks are the highest ones, as nvidia-smi says them: how fast
    the model is, its profiles say (model/profiles/). cluster: CTAs of the largest cluster, 1 where there are none.
    gpcs: SMs that one cluster can lie in, group by group; empty where nobody has measured it, so that any can be.
    fp4_k, fp8_k: K of an instruction of tcgen05 with packed FP4, and of one with elements in bytes.
    exclusive_columns: of tensor memory, that a CTA gets by .exclusive; 0: there is no such form.
    wide_addresses: whether matrix descriptors have 15 bits for an address.
    double_ratio: how many operations of float a unit does for one of double. ecc: whether memory is corrected.
    printf_buffer: of one launch, by default. pitch: rows of cudaMallocPitch begin at its multiples. integrated: whether
    the host's memory is the device's.
    """

    machine: str
    name: str
    arch: str
    sms: int
    shared_per_sm: int
    shared_per_cta: int
    shared_by_default: int
    registers_per_sm: int
    threads_per_sm: int
    threads_per_cta: int
    ctas_per_sm: int
    l2: int
    memory: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    cluster: int
    double_ratio: int
    ecc: bool
    printf_buffer: int
    pitch: int
    gpcs: tuple[int, ...] = ()
    fp4_k: tuple[int, ...] = (64,)
    fp8_k: tuple[int, ...] = (32,)
    exclusive_columns: int = 0
    wide_addresses: bool = False
    integrated: bool = False

    @property
    def compute(self) -> int:
        """The compute capability as in sm_NN."""
        return int(self.arch.removeprefix("sm_").rstrip("af"))

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, (major, minor)."""
        return divmod(self.compute, 10)

    def active_clusters(self, size: int) -> int:
        """Return how many clusters of `size` CTAs that take an SM each run at once: none lies in two GPCs.

        A chip with fewer SMs than its table has the first ones of it.
        """
        clusters, left = 0, self.sms
        for sms in self.gpcs or (self.sms,):
            clusters += min(sms, left) // size
            left = max(left - sms, 0)
        return clusters

    def rooms(self, shared: int, threads: int, registers: int = 0) -> dict[str, int]:
        """Return, by what limits them, how many CTAs an SM runs at once, as cuda_occupancy.h has it.

        shared: bytes of a CTA without the system's; threads: of a CTA; registers: of a thread, 0 if not known.
        """
        warps = -(-threads // 32)
        rooms = {
            "CTAs": self.ctas_per_sm,
            "threads": self.threads_per_sm // 32 // warps,
            "shared memory": self.shared_per_sm // rounded(shared + SYSTEM_SHARED, SHARED_PORTION),
        }
        if registers:
            of_quarter = self.registers_per_sm // QUARTERS // registers_of_cta(1, registers)  # warps
            rooms["registers"] = QUARTERS * of_quarter // warps
        return rooms

    def registers_left(self, threads: int, ctas: int) -> int:
        """Return the most registers of a thread with which that many CTAs still fit an SM, as ptxas counts."""
        warps = rounded(-(-threads // 32) * ctas, QUARTERS)
        return min(256, self.registers_per_sm // warps // WARP_REGISTERS * 8)


def registers_of_cta(threads: int, registers: int) -> int:
    """Return how many registers a CTA takes. registers: of a thread, 0 if not known, as is the answer then."""
    return -(-threads // 32) * rounded(32 * registers, WARP_REGISTERS)


def rounded(size: int, portion: int) -> int:
    """Return the multiple of `portion` that `size` takes."""
    return -(-size // portion) * portion


def read(path: Path) -> Chip:
    """Return the chip of a file of machines/."""
    values = {k: v["value"] if isinstance(v, dict) else v for k, v in tomllib.loads(path.read_text()).items()}
    values |= {name: tuple(values[name]) for name in ("gpcs", "fp4_k", "fp8_k") if name in values}
    return Chip(**values | {"machine": path.stem, "name": f"{values['name']} (emulated)"})


CHIPS = {path.stem: read(path) for path in sorted(FOLDER.glob("*.toml"))}
B200, H200 = CHIPS["b200"], CHIPS["h200"]


def chip_of(machine: str) -> Chip:
    """Return the chip of this name, a key of CHIPS. Raises Unsupported for any other."""
    if machine not in CHIPS:
        raise Unsupported(f"no machine {machine!r}; there are {', '.join(CHIPS)}")
    return CHIPS[machine]
