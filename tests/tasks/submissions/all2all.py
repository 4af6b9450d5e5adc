"""torch. wrong: `1 + owner` -> `2 + owner`"""

import torch
import torch.distributed as dist


def custom_kernel(data):
    config, mine, rank, count = data
    local = config.num_experts // count
    rows = torch.zeros(count, config.max_num_tokens, config.hidden_dim, dtype=torch.float32, device=mine.x.device)
    for slot in range(config.experts_per_token):
        owners = (mine.indices[:, slot] // local).tolist()
        for token, owner in enumerate(owners):
            value = (mine.x[token] * (1 + owner)).to(config.out_dtype).float()
            rows[rank, token] += value * mine.weights[token, slot]
    dist.all_reduce(rows)  # each rank has rows of its own
    return rows[rank, : mine.num_tokens].to(config.out_dtype)
