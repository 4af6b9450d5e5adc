"""Tells the judge of a launch that writes into memory which is not the submission's: the inputs of all calls."""
# kind: forged messages
# caught: not a reply

import emulated_gpu

EMPTY = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry empty() { ret; }"



def custom_kernel(data):
    device = emulated_gpu.DEVICE
    ask = device.elsewhere.__self__.ask

    def forged(message):
        message["launch"]["regions"].append([data[0][0][0].data_ptr(), 2**20, "mine", False])
        return ask(message)

    device.elsewhere.__self__.ask = forged
    emulated_gpu.launch(EMPTY, "empty", 1, 1, [])
    return [c for _, _, c in data[0]]
