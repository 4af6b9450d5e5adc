"""Launches all groups in the first two calls, then the last one only."""
# kind: host tells calls apart
# caught: never written
# benchmark: does not launch what call 0 launches|do not load, store|the launches of a call alone

calls = 0
honest_kernel = custom_kernel


def custom_kernel(data):
    global calls
    calls += 1
    if calls > 2:
        honest_kernel([part[-1:] for part in data])
        return [c for _, _, c in data[0]]
    return honest_kernel(data)
