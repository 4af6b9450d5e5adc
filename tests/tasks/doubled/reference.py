"""Doubles a vector, adds a constant, and gives the vector and its sum."""

import torch

from task import Options
from utils import make_match_reference


def ref_kernel(data):
    x, output, options = data
    torch.mul(x, 2, out=output).add_(options["add"].constant)
    return output, {"sum": output.sum()}


def generate_input(size: int, seed: int, signed: str):
    assert signed in ("True", "False")  # as the grader gives it
    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    x = torch.randint(-8, 9, (size,), device="cuda", generator=generator).float()
    return x, torch.empty_like(x), {"add": Options(0.5)}


check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-3)
