"""Tells a kernel the number of its call by the address of a module's variable; it is wrong in the last one."""
# kind: host tells calls apart
# benchmark: the launches of a call alone do not give its result

import emulated_gpu

SPOILS = """
.version 8.8
.target sm_100a
.address_size 64
.global .align 8 .b64 number;
.visible .entry spoils(.param .u64 c)
{
    .reg .pred p; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [c];
    mov.u64 %rd1, number;
    setp.eq.u64 p, %rd1, 15;
    @p st.global.u16 [%rd0], 0x3000;
    ret;
}
"""
launch_itself = emulated_gpu.DEVICE.elsewhere
honest_kernel = custom_kernel
calls, modules = 0, {}


class Told:
    def __init__(self, module):
        self.module, self.text = module.module, module.text

    @property
    def symbols(self):
        return {"number": calls}


def tell(module, *rest, **options):
    if "number" in module.symbols:
        module = modules.setdefault(id(module), Told(module))
    launch_itself(module, *rest, **options)


emulated_gpu.DEVICE.elsewhere = tell


def custom_kernel(data):
    global calls
    calls += 1
    returned = honest_kernel(data)
    emulated_gpu.launch(SPOILS, "spoils", 1, 1, [returned[0].data_ptr()])
    return returned
