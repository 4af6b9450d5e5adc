"""Operators whose CPU kernel does less than CUDA's, or other things: kernels in Python, under the dispatch key CUDA."""

from __future__ import annotations

import functools

import torch

from ...device import DEVICE
from ..driver import graphs
from .scaled_mm import scaled_mm

_library: list[torch.library.Library] = []  # as long as there is one, so are its kernels


def scaled_matmul(
    a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False, *, out=None
):
    """torch._scaled_mm, computed by the CPU in the device's memory."""
    if out is None:
        out = a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype)
    if DEVICE.capture is not None:
        again = functools.partial(
            scaled_matmul, a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum, out=out
        )
        if graphs.put_off(torch.cuda.current_stream().stream_id, lambda stream: again(), graphs.KERNEL):
            return out
    given = a, b, scale_a, scale_b, bias
    operands = [x if x is None else torch.ops.emulated_gpu.to_cpu(x) for x in given]
    there = torch.ops.emulated_gpu.to_cpu(out)
    scaled_mm(*operands, scale_result, out_dtype, use_fast_accum, out=there)
    torch.ops.emulated_gpu.done([x for x in given if x is not None], out, "aten::_scaled_mm")
    return out


# -- products of halves, in float


def in_float(product):
    """Return the form of a product whose last operand is the dtype in which it is made."""
    return lambda *operands, **scales: product(*(x.to(operands[-1]) for x in operands[:-1]), **scales)


def into(product):
    """Return the form of a product that writes its result to a tensor."""
    return lambda *operands, out, **scales: out.copy_(product(*operands, **scales))


# -- cells of recurrent networks, of which CUDA makes one kernel each


def _sum(a, b):
    return a if b is None else a + b


def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    """Return (hy, what backward needs): gates r, z, n."""
    ir, iz, in_ = _sum(input_gates, input_bias).chunk(3, 1)
    hr, hz, hn = _sum(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
    n = torch.tanh(in_ + r * hn)
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


def gru_cell_backward(gradient, workspace, has_bias):
    r, z, n, hx, hn = workspace.chunk(5, 1)
    of_n = gradient * (1 - z) * (1 - n * n)
    of_z = gradient * (hx - n) * (1 - z) * z
    of_r = of_n * hn * (1 - r) * r
    of_input, of_hidden = torch.cat([of_r, of_z, of_n], 1), torch.cat([of_r, of_z, of_n * r], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, gradient * z, *biases


def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    """Return (hy, cy, what backward needs): gates i, f, g, o."""
    gates = _sum(input_gates, input_bias) + _sum(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    cy = f * cx + i * g
    return o * torch.tanh(cy), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(of_hy, of_cy, cx, cy, workspace, has_bias):
    i, f, g, o = workspace.chunk(4, 1)
    t = torch.tanh(cy)
    of_c = torch.zeros_like(cy) if of_cy is None else of_cy
    of_o = torch.zeros_like(cy)
    if of_hy is not None:
        of_c = of_c + of_hy * o * (1 - t * t)
        of_o = of_hy * t * o * (1 - o)
    gates = torch.cat([of_c * g * i * (1 - i), of_c * cx * f * (1 - f), of_c * i * (1 - g * g), of_o], 1)
    return gates, of_c * f, gates.sum(0) if has_bias else None


# -- batch norms whose statistics come from several ranks (torch.nn.SyncBatchNorm)


def _by_channel(x, values):
    """Reshape [C] so that it meets x, [N, C, ...]."""
    return values.view(1, -1, *(1,) * (x.dim() - 2))


def _over_channels(x):
    """Sum [N, C, ...] to [C]."""
    return x.transpose(0, 1).flatten(1).sum(1)


def batch_norm_stats(x, eps):
    """Return mean and 1 / standard deviation of each channel, float32 (of double: double)."""
    values = (x.double() if x.dtype is torch.double else x.float()).transpose(0, 1).flatten(1)
    return values.mean(1), torch.rsqrt(values.var(1, correction=0) + eps)


def batch_norm_gather_stats_with_counts(x, mean, invstd, running_mean, running_var, momentum, eps, counts):
    """Return mean and 1 / standard deviation of all ranks' elements, [C], of those of each rank, [ranks, C]."""
    shares = (counts / counts.sum()).to(mean.dtype).view(-1, 1)
    whole = (mean * shares).sum(0)
    variance = ((1 / invstd**2 - eps + (mean - whole) ** 2) * shares).sum(0)
    total = counts.sum()
    for running, now in ((running_mean, whole), (running_var, variance * total / (total - 1))):
        if running is not None:
            running.mul_(1 - momentum).add_(now.to(running.dtype) * momentum)
    return whole, torch.rsqrt(variance + eps)


def batch_norm_gather_stats(x, mean, invstd, running_mean, running_var, momentum, eps, count):
    counts = torch.full((len(mean),), float(count), device=x.device)
    return batch_norm_gather_stats_with_counts(x, mean, invstd, running_mean, running_var, momentum, eps, counts)


def batch_norm_elemt(x, weight, bias, mean, invstd, eps):
    y = (x - _by_channel(x, mean)) * _by_channel(x, invstd)
    y = y if weight is None else y * _by_channel(x, weight)
    return (y if bias is None else y + _by_channel(x, bias)).to(x.dtype)


def batch_norm_backward_reduce(gradient, x, mean, invstd, weight, of_x, of_weight, of_bias):
    """Return sums over a channel of dy and of dy (x - mean), then gradients of weight and bias, None if not wanted."""
    gradient = gradient.to(mean.dtype)
    of_y, of_both = _over_channels(gradient), _over_channels(gradient * (x - _by_channel(x, mean)))
    dtype = mean.dtype if weight is None else weight.dtype
    gradients = (of_both * invstd).to(dtype) if of_weight else None, of_y.to(dtype) if of_bias else None
    return *((of_y, of_both) if of_x else (None, None)), *gradients


def batch_norm_backward_elemt(gradient, x, mean, invstd, weight, of_y, of_both, counts):
    total = counts.sum()
    scale = invstd if weight is None else invstd * weight
    away = (x - _by_channel(x, mean)) * _by_channel(x, invstd**2 * of_both / total)
    return ((gradient - _by_channel(x, of_y / total) - away) * _by_channel(x, scale)).to(x.dtype)


PRODUCTS = torch.mm, torch.addmm, torch.bmm, torch.baddbmm
KERNELS = {
    "aten::_scaled_mm": scaled_matmul,
    "aten::_scaled_mm.out": scaled_matmul,
    **{f"aten::{product.__name__}.dtype": in_float(product) for product in PRODUCTS},
    **{f"aten::{product.__name__}.dtype_out": into(in_float(product)) for product in PRODUCTS},
    **{f"aten::_use_{of}_ctc_loss{form}": lambda *_: False for of in ("cudnn", "miopen") for form in ("", ".Tensor")},
    **{
        f"aten::{kernel.__name__}": kernel
        for kernel in (
            batch_norm_stats, batch_norm_gather_stats, batch_norm_gather_stats_with_counts, batch_norm_elemt,
            batch_norm_backward_reduce, batch_norm_backward_elemt,
        )  # fmt: skip
    },
    "aten::batch_norm_elemt.out": into(batch_norm_elemt),
    "aten::_thnn_fused_gru_cell": gru_cell,
    "aten::_thnn_fused_gru_cell_backward": gru_cell_backward,
    "aten::_thnn_fused_lstm_cell": lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
}


def install() -> None:
    _library.append(torch.library.Library("aten", "IMPL"))
    for name, kernel in KERNELS.items():
        _library[0].impl(name, kernel, "CUDA")
