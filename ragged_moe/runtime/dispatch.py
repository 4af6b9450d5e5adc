"""What torch's dispatcher has between autograd and the kernels of a call: a tracer, a mode, a view to be negated."""

import functools

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._ops import key_extractor

BELOW_AUTOGRAD = torch._C._after_ADInplaceOrView_keyset.remove(DispatchKey.BackendSelect)  # which operators have not

below_autograd = torch._C._AutoDispatchBelowAutograd
modes = torch._C._len_torch_dispatch_stack  # how many are active, as tracers: Dynamo's guards do not see some of them


def keys_of(*operands) -> int:
    """The bits of where torch would dispatch an operator to, behind autograd. Operands may be no tensors."""
    return key_extractor([x for x in operands if isinstance(x, Tensor)], BELOW_AUTOGRAD).raw_repr()


@functools.cache
def is_eager(keys: int) -> bool:
    """Whether nothing is between autograd and the kernels, by the bits of dispatch keys."""
    first = (DispatchKeySet.from_raw_repr(keys) & BELOW_AUTOGRAD).highestPriorityTypeId()
    has_kernel = torch._C._dispatch_is_included_in_alias(first, DispatchKey.CompositeExplicitAutograd)
    return has_kernel and first != DispatchKey.Meta or first == DispatchKey.Undefined
