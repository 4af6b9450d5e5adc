"""Imported by the judge's processes where a test wants memory that is slower than any modelled time allows."""

from evaluation.judge import modelled

modelled.MEMORY_BANDWIDTH = 1e6  # bytes/s
