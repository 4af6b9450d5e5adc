"""torch. wrong: `scores.topk(top)` -> `scores.mul(2).topk(top)`"""

import torch


def custom_kernel(data):
    x, weights, config = data
    rows, top = x.reshape(-1, x.shape[-1]), config["n_experts_per_token"]

    def expert(name, given):
        gate, up, down = (weights[f"{name}.{i}.weight"] for i in range(3))
        return (torch.nn.functional.silu(given @ gate) * (given @ up)) @ down

    scores = torch.softmax(rows @ weights["router.weight"].T, -1)
    factors, chosen = scores.topk(top)
    out = expert("shared_experts", rows)
    for number in range(config["n_routed_experts"]):
        token, slot = (chosen == number).nonzero(as_tuple=True)
        if len(token):
            out.index_add_(0, token, expert(f"experts.{number}", rows[token]) * factors[token, slot, None])
    return out.view_as(x)
