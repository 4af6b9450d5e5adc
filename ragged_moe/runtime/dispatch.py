"""What torch's dispatcher has between autograd and the kernels of a call: a tracer, a mode, a view to be negated."""

import functools

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._ops import key_extractor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

BELOW_AUTOGRAD = torch._C._after_ADInplaceOrView_keyset.remove(DispatchKey.BackendSelect)  # which operators have not

below_autograd = torch._C._AutoDispatchBelowAutograd
modes = torch._C._len_torch_dispatch_stack  # how many are active, as tracers: Dynamo's guards do not see some of them


def require_no_tracer(name: str) -> None:
    """ValueError in a mode of torch's own, as make_fx's, to which a call that is no operator would be a constant."""
    if modes() and any(getattr(mode, "_mode_key", None) is not None for mode in _get_current_dispatch_mode_stack()):
        raise ValueError(f"{name} is no operator of torch: make_fx, and tensors that are traced or fake, do not see it")


def keys_of(*operands) -> int:
    """The bits of where torch would dispatch an operator to, behind autograd. Operands may be no tensors."""
    return key_extractor([x for x in operands if isinstance(x, Tensor)], BELOW_AUTOGRAD).raw_repr()


@functools.cache
def is_eager(keys: int) -> bool:
    """Whether nothing is between autograd and the kernels, by the bits of dispatch keys."""
    first = (DispatchKeySet.from_raw_repr(keys) & BELOW_AUTOGRAD).highestPriorityTypeId()
    has_kernel = torch._C._dispatch_is_included_in_alias(first, DispatchKey.CompositeExplicitAutograd)
    return has_kernel and first != DispatchKey.Meta or first == DispatchKey.Undefined
