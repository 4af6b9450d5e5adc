"""Returns tensors whose strides are zero: all elements lie in one place."""
# kind: no result
# caught: elements differ|never written|returned

from reference import ref_kernel


def custom_kernel(data):
    return [c[:1, :1].expand(c.shape) for c in ref_kernel(data)]
