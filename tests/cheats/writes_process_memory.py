"""The same by process_vm_writev, ptrace and pidfd_getfd: where one of them works, it says so and computes."""
# kind: reaches into the judge
# caught: PermissionError: .*Operation not permitted
# benchmark: PermissionError: .*Operation not permitted

import ctypes
import os

from reference import ref_kernel

libc = ctypes.CDLL(None, use_errno=True)


def custom_kernel(data):
    judge = os.getppid()
    local = ctypes.create_string_buffer(8)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(local), 8)
    remote = (ctypes.c_size_t * 2)(id(object), 8)
    tries = [
        libc.process_vm_readv(judge, vector, 1, remote, 1, 0),
        libc.process_vm_writev(judge, vector, 1, remote, 1, 0),
        libc.ptrace(0x4206, judge, 0, 0),  # PTRACE_SEIZE
        libc.syscall(438, libc.syscall(434, judge, 0), 1, 0),  # pidfd_getfd(pidfd_open(judge), 1)
    ]
    if max(tries) < 0:
        raise PermissionError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ref_kernel(data)
