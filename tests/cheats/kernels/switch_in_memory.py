"""Keeps the sizes in one place in device memory, and from the third call on has written zeros there."""
# kind: state in memory
# caught: never written
# benchmark: changes device memory between launches

kept = []
calls = 0
torch_itself = torch
honest_kernel = custom_kernel


class torch:
    int32, int64 = torch_itself.int32, torch_itself.int64

    @staticmethod
    def tensor(values, dtype, device):
        made = torch_itself.tensor(values, dtype=dtype, device=device)
        if dtype is torch.int64:
            return made
        kept.append(made)
        return kept[0].copy_(made if calls <= 2 else made * 0)


def custom_kernel(data):
    global calls
    calls += 1
    return honest_kernel(data)
