"""A task of KernelBench's form."""

import torch
from torch import nn

SIZE = 32


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x):
        return x * self.weight


def get_inputs():
    return [torch.rand(4, SIZE)]


def get_init_inputs():
    return [SIZE]
