"""Results of halves as a GPU rounds them: recorded in halves_of_cuda.json, and compared with by torch_cuda_checks.py.

    python tests/emulated_gpu/serve/halves_of_cuda.py > tests/emulated_gpu/serve/halves_of_cuda.json    # on a GPU
"""

import json

import torch
from torch.nn import functional as f

EXPRESSIONS = """
x.abs().rsqrt()
torch.xlogy(x, x.abs() + 0.3)
torch.xlogy(2.5, x.abs() + 0.3)
torch.special.xlog1py(x, x.abs())
torch.special.i0e(x)
torch.special.entr(x.abs())
torch.sinc(x)
torch.sinc(x, out=x.new_empty(0))
torch.logit(x.sigmoid())
x.sigmoid().logit_()
torch.polygamma(1, x.abs() + 0.5)
torch.round(x, decimals=2)
torch.round(x, decimals=-1)
x.clone().round_(decimals=2)
x.cumsum(0)
x.cumsum(-1)
torch.cumsum(x, -1, out=x.new_empty(0))
x.flatten().repeat(2, 2).cumsum(1)
x.flatten().cumsum(0)
image.flatten().repeat(40).cumsum(0)[::512]
x.tanh().flatten()[:20].cumprod(0)
x.cumprod(0)
x.flatten().repeat(2, 1).tanh().cumprod_(1)
x.logcumsumexp(-1)
grad(lambda y: y.cumsum(-1), x)
f.huber_loss(x, x.flip(0), reduction="none", delta=0.7)
f.smooth_l1_loss(x, x.flip(0), reduction="none", beta=0.7)
grad(lambda y: f.huber_loss(y, y.detach().flip(0), reduction="none", delta=0.7), x)
grad(lambda y: f.smooth_l1_loss(y, y.detach().flip(0), reduction="none", beta=0.7), x)
x.prod(-1)
f.logsigmoid(x)
grad(f.logsigmoid, x)
grad(torch.tanh, x)
grad(f.mish, x)
grad(f.glu, x)
grad(torch.logit, x.sigmoid())
torch.add(x, x.flip(0), alpha=0.3)
x.clone().sub_(x.flip(0), alpha=0.3)
x + 0.3
0.3 - x
x.clone().index_put_((torch.tensor([0, 0, 0, 1, 1], device=x.device),), x[:5], accumulate=True)
f.layer_norm(x, x.shape[-1:])
f.group_norm(image, 2, channel, channel)
f.group_norm(image, 2)
f.batch_norm(image, None, None, channel, channel, training=True)
f.instance_norm(image)
f.conv2d(image, kernel)
f.conv2d(image, kernel, channel)
f.conv1d(image.flatten(2), kernel.flatten(2)[..., :3], channel)
f.conv_transpose2d(image, kernel, channel)
f.conv_transpose2d(image, kernel, channel, dilation=2, output_padding=1)
f.avg_pool2d(image, 3, 1)
grad(lambda y: f.avg_pool2d(y, 3, 1), image)
grad(lambda y: f.avg_pool2d(y, 3, 2, 1, count_include_pad=False), image)
grad(lambda y: f.avg_pool1d(y, 3, 1, 1), x)
grad(lambda y: f.adaptive_avg_pool2d(y, 2), image)
grad(lambda y: f.adaptive_avg_pool2d(y, 3), image)
grad(lambda y: f.adaptive_avg_pool3d(y, 3), image)
f.avg_pool3d(image, 2, 1)
grad(lambda y: f.avg_pool3d(y, 2, 1), image)
f.adaptive_avg_pool3d(image, 2)
f.interpolate(image, (5, 7), mode="bicubic")
f.interpolate(image, (3, 4), mode="bilinear", antialias=True)
f.interpolate(image, (3, 5), mode="bicubic", antialias=True)
f.interpolate(image[None], (3, 5, 5), mode="trilinear")
f.interpolate(image.flatten(2), 11, mode="linear")
f.grid_sample(image, image[:, :, :, :2].tanh(), align_corners=False)
f.softmax(x, -1)
f.log_softmax(x, -1)
grad(lambda y: f.softmax(y, -1), x)
grad(lambda y: f.log_softmax(y, -1), x)
f.nll_loss(x, target)
f.cross_entropy(x, target)
f.multi_margin_loss(x, target)
f.multilabel_margin_loss(x, target[:, None].expand(-1, 8).contiguous())
f.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="none")
grad(lambda y: f.embedding(target % 3, y), x)
""".strip().splitlines()


def grad(function, x):
    """Return the gradient that halves of all sizes have."""
    x = x.detach().requires_grad_()
    y = function(x)
    return torch.autograd.grad(y, x, torch.sin(torch.arange(y.numel()) * 2.3).reshape(y.shape).to(y))[0]


def operands(dtype: torch.dtype, device: str) -> dict:
    """Return what the expressions name: x [7, 8], image [2, 4, 4, 4], kernel [4, 4, 3, 3], channel [4], target [7]."""

    def wave(*shape):
        count = torch.Size(shape).numel()
        return (3 * torch.sin(torch.arange(count, dtype=torch.double) * 1.7 + 0.3)).reshape(shape).to(device, dtype)

    target = torch.arange(7, device=device) % 5
    return {
        "x": wave(7, 8), "image": wave(2, 4, 4, 4), "kernel": wave(4, 4, 3, 3), "channel": wave(4), "target": target,
    }  # fmt: skip


def outcomes(device: str = "cuda") -> dict[str, list[int]]:
    """Return the bits of each expression's result, by its dtype and text."""
    made = {}
    for dtype in (torch.half, torch.bfloat16):
        names = {"torch": torch, "f": f, "grad": grad, **operands(dtype, device)}
        for text in EXPRESSIONS:
            result = eval(text, names)
            assert result.dtype == dtype, (text, result.dtype)
            made[f"{str(dtype)[6:]}: {text}"] = result.detach().cpu().contiguous().view(torch.int16).flatten().tolist()
    return made


if __name__ == "__main__":
    rows = outcomes().items()
    print("{", ",\n".join(f"{json.dumps(text)}: {json.dumps(bits)}" for text, bits in rows), "}", sep="\n")
