"""A script as torchrun starts it, which tests/emulated_gpu/machine/test_devices.py runs as two emulated ranks."""

import copy
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import emulated_gpu

rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
peer = (rank + 1) % ranks
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
dist.init_process_group("nccl", device_id=device)
assert (dist.get_rank(), dist.get_world_size(), torch.cuda.device_count()) == (rank, ranks, 2)
assert torch.cuda.current_device() == rank and torch.cuda.can_device_access_peer(rank, peer)
assert __name__ == "__main__" and sys.modules["__main__"].rank == rank  # each its own


def check(got: torch.Tensor, expected: list) -> None:
    assert got.device == device and got.tolist() == expected, (rank, got, expected)


# Collectives
mine = torch.arange(4.0, device=device) + 10 * rank
total = mine.clone()
dist.all_reduce(total)
check(total, [10, 12, 14, 16])
both = torch.empty(8, device=device)
dist.all_gather_into_tensor(both, mine)
check(both, [0, 1, 2, 3, 10, 11, 12, 13])
half = torch.empty(2, device=device)
dist.reduce_scatter_tensor(half, mine)
check(half, [10, 12] if rank == 0 else [14, 16])
rows = torch.empty(3 if rank == 0 else 1, device=device)
split = ([1, 2], [1, 1]) if rank == 0 else ([1, 0], [2, 0])
dist.all_to_all_single(rows, mine[:2], *split)
check(rows, [0, 10, 11] if rank == 0 else [1])
first = mine.clone()
dist.broadcast(first, 0)
check(first, [0, 1, 2, 3])
objects = [None] * ranks
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": 0}, {"rank": 1}]
dist.barrier()
slow = dist.new_group(backend="cpu:gloo,cuda:gloo")
for where in "cpu", device:
    total = torch.ones(2, device=where)
    dist.all_reduce(total, group=slow)
    assert total.tolist() == [2, 2]


# An operator of one name, whose functions are a rank's own


@torch.library.custom_op("two_ranks::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * (rank + 2)


scaled.register_fake(lambda x: torch.empty_like(x))
scaled.register_autograd(lambda ctx, gradient: gradient * (rank + 2))
dist.barrier()
ones = torch.ones(2, device=device, requires_grad=True)
drawn = scaled(ones)
dist.barrier()
drawn.sum().backward()
check(drawn, [rank + 2] * 2)
check(ones.grad, [rank + 2] * 2)
check(torch.ops.two_ranks.scaled(ones), [rank + 2] * 2)

# DistributedDataParallel: the gradient is the mean of both ranks'
line = torch.nn.Linear(4, 1, bias=False).to(device)
torch.nn.init.ones_(line.weight)
wrapped = torch.nn.parallel.DistributedDataParallel(line, device_ids=[rank])
for _ in range(2):  # its buckets are made anew behind the first
    line.weight.grad = None
    wrapped(mine).backward()
    check(line.weight.grad, [[5, 6, 7, 8]])

# From one to the other, each sending first
there = torch.empty(4, device=device)
for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, there, peer), dist.P2POp(dist.isend, mine, peer)]):
    work.wait()
check(there, [v + 10 * peer for v in range(4)])

# Random numbers are each rank's own, of its device, too
torch.manual_seed(rank)
first = torch.rand(2, device=device)
dist.barrier()
second = torch.rand(2, device=device)
torch.manual_seed(rank)
assert torch.equal(torch.rand(2, device=device), first) and torch.equal(torch.rand(2, device=device), second)

# Parameters in shards, of one model on all rows; a norm over the rows of all ranks
torch.manual_seed(0)
whole = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)).to(device)
parts = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole))
parts[1] = fully_shard(parts[1], mesh=init_device_mesh("cuda", (ranks,)))
rows = torch.randn(6, 4, device=device)
whole(rows).square().sum().backward()
parts(rows[2 * rank * rank : 2 + 4 * rank]).square().sum().backward()  # two rows, four rows
torch.testing.assert_close(parts[1].weight.grad.full_tensor() * ranks, whole[1].weight.grad)
torch.testing.assert_close(parts[0].running_var, whole[0].running_var)
gradient = parts[0].weight.grad
dist.all_reduce(gradient)
torch.testing.assert_close(gradient, whole[0].weight.grad)

# Tensors of both devices
other = mine.to(f"cuda:{peer}")
assert other.device.index == peer and other.tolist() == mine.tolist()
try:
    other + mine
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("an operation on two devices")

# Symmetric memory: by torch's operations, then by a kernel
buffer = symmetric.empty(2, 64, dtype=torch.int32, device=device)
handle = symmetric.rendezvous(buffer, dist.group.WORLD)
assert (handle.rank, handle.world_size, handle.buffer_ptrs[rank]) == (rank, ranks, buffer.data_ptr())
buffer.fill_(rank)
handle.barrier()
assert (handle.get_buffer(peer, (64,), torch.int32, 64) == peer).all()
handle.put_signal(peer)
handle.wait_signal(peer)

SWAP = """.version 8.7
.target sm_90
.address_size 64
.visible .entry swap(.param .u64 there, .param .u64 here, .param .u64 its, .param .u64 own, .param .u32 rank) {
  .reg .b64 %a, %b, %f, %g, %o;
  .reg .b32 %t, %v;
  .reg .pred %p;
  ld.param.u64 %a, [there]; ld.param.u64 %b, [here]; ld.param.u64 %f, [its]; ld.param.u64 %g, [own];
  ld.param.u32 %v, [rank]; mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4; add.u64 %a, %a, %o; add.u64 %b, %b, %o;
  add.u32 %v, %v, %t; st.global.u32 [%a], %v; bar.sync 0;
  setp.ne.u32 %p, %t, 0; @%p bra join;
  st.release.sys.global.u32 [%f], 1;
again:
  ld.acquire.sys.global.u32 %v, [%g]; setp.eq.u32 %p, %v, 0; @%p bra again;
join:
  bar.sync 0; ld.global.u32 %v, [%b]; add.u32 %v, %v, 1000; st.global.u32 [%b+256], %v;
  ret;
}"""
pads, pointers = handle.signal_pad_ptrs, handle.buffer_ptrs
handle.barrier()
emulated_gpu.launch(SWAP, "swap", 1, 64, [pointers[peer], pointers[rank], pads[peer] + 64, pads[rank] + 64, 100 * rank])
check(buffer[1], [1000 + 100 * peer + k for k in range(64)])

print("right", rank, flush=True)
dist.all_reduce(mine) if rank == 0 else dist.barrier()  # which is wrong
