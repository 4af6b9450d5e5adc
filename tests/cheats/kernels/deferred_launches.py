"""Launches nothing until the last of 15 calls, which launches for all."""
# kind: results come late
# caught: never written
# benchmark: does not launch what call 0 launches|nothing to time|launches of a call alone

waiting = []
honest_kernel = custom_kernel


def custom_kernel(data):
    waiting.append(data)
    if len(waiting) == 15:
        for late in waiting:
            honest_kernel(late)
        waiting.clear()
    return [c for _, _, c in data[0]]
