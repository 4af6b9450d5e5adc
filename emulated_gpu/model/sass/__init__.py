"""Machine code (SASS) of kernels: disassembled, matched to the PTX that it was made of, and walked as a warp issues it.

disassembly.py makes and reads it, segments.py says which of it belongs to which block of PTX, walk.py what that costs.
"""

from .costs import block_costs
from .disassembly import MachineCode, machine_code
from .walk import Figures

__all__ = ["Figures", "MachineCode", "block_costs", "machine_code"]
