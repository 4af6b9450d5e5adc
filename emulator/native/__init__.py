"""Machine code for what warps execute often: the Python of blocks (ptx/program.py), compiled by LLVM.

A handler of an instruction says once, in Python, what it does; translate.py turns that text into LLVM's assembly. What
it has no translation for stays Python, between two pieces of machine code. The files, each above those before it:

  llvm.py         values, LLVM's text, the compiler
  arithmetic.py   what generated code calls of formats/alu.py, by the same names
  conversion.py   of formats/convert.py
  exchange.py     of formats/lanes.py
  memory.py       of units/access.py: loads and stores with the checks of state/*_memory.py
  translate.py    one instruction
  region.py       many blocks as one function
  tiers.py        which blocks are worth it, and when
"""
