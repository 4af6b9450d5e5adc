"""Returns lists in lists, deeper than what reads them may go."""
# kind: no result
# caught: returned list, not a tensor


def custom_kernel(data):
    returned = [c for _, _, c in data[0]]
    for _ in range(100_000):
        returned = [returned]
    return returned
