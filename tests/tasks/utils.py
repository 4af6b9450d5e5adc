"""Compares with a reference."""

import torch


def make_match_reference(reference, **tolerance):
    def check(data, given):
        wanted, output = reference(data), given[0]
        if output.shape != wanted[0].shape:
            return False, "SIZE MISMATCH"
        good = torch.allclose(output, wanted[0], **tolerance) and torch.allclose(given[1]["sum"], wanted[1]["sum"])
        return good, "" if good else "mismatch found!"

    return check
