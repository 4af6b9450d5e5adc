"""Kernels whose memory an H200 left is compared with the emulator's bit for bit.

case.py says what a case is, the other files declare cases, record.py runs them on a GPU; README.md has what came out.
"""
