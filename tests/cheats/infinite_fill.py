"""Fills the output with infinities."""
# kind: parts of the work
# caught: elements differ, first at .*: inf instead of


def custom_kernel(data):
    return [c.fill_(float("inf")) for _, _, c in data[0]]
