"""torch. wrong: `bikc,bjkc->bijc` -> `bkic,bkjc->bijc`"""

import torch
from torch.nn.functional import layer_norm, linear


def custom_kernel(data):
    x, mask, weights, config = data
    x = layer_norm(x, (config["dim"],), weights["norm.weight"], weights["norm.bias"])

    def projected(side: str):
        gate = torch.sigmoid(linear(x, weights[f"{side}_gate.weight"]))
        return linear(x, weights[f"{side}_proj.weight"]) * mask[..., None] * gate

    out = torch.einsum("bikc,bjkc->bijc", projected("left"), projected("right"))
    out = layer_norm(out, (config["hidden_dim"],), weights["to_out_norm.weight"], weights["to_out_norm.bias"])
    return linear(out * torch.sigmoid(linear(x, weights["out_gate.weight"])), weights["to_out.weight"])
