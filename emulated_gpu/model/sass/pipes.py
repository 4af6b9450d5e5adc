"""Where machine code is executed: the pipe of an SM's quarter that takes an instruction, by its opcode."""

from __future__ import annotations

import functools

PIPES = {
    "fma": "FFMA FADD FMUL HFMA2 HADD2 HMUL2 FFMA32I",
    "fma2": "FFMA2 FADD2 FMUL2",
    "imad": "IMAD",
    "alu": "IADD3 IADD VIADD LOP3 SHF LEA ISETP FSETP SEL FSEL FMNMX PRMT VIMNMX MOV IABS PLOP3 SGXT BMSK P2R R2P "
    "IADD64 F2FP VIADDMNMX FMNMX3 VIMNMX3 CS2R LOP32I HMNMX2 HSETP2 I2FP",
    "xu": "MUFU F2F F2I I2F POPC FLO BREV F2IP",
    "lsu": "LDS STS LDG STG LD ST LDL STL ATOMS ATOMG ATOM RED LDSM STSM SHFL SYNCS LDGSTS REDUX CCTL MATCH "
    "UBLKCP UTMALDG UTMASTG UTMAPF UTMACMDFLUSH UBLKPF UTMACCTL LDT LDTM STT STTM ERRBAR STAS",
    "branch": "BRA EXIT BRX RET CALL BSSY BSYNC BREAK JMP BRXU BPT",
    "tensor": "HGMMA QGMMA IGMMA WARPGROUP WARPGROUPSET",
    "fence": "MEMBAR FENCE",
    "other": "S2R S2UR BAR DEPBAR VOTE VOTEU ELECT R2UR NANOSLEEP LDC LDCU ULDC WARPSYNC YIELD NOP",
}
_PIPE = {opcode: pipe for pipe, opcodes in PIPES.items() for opcode in opcodes.split()}
MOVABLE = {"alu", "imad", "fma", "fma2", "uniform", "other", "xu"}  # what ptxas moves across what stands around it


@functools.cache
def pipe_of(opcode: str) -> str:
    """The pipe of an opcode: of one that is not known, by its first letters."""
    if opcode in _PIPE:
        return _PIPE[opcode]
    if opcode.startswith("UTC"):
        return "utc"
    return "uniform" if opcode.startswith("U") else "other"
