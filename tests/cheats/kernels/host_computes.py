"""Computes on the host, and launches a kernel for one group to be timed."""
# kind: host tells calls apart
# passes the test: results are right, and on a GPU the host's work would be timed
# benchmark: the launches of a call alone do not give its result when timed

from reference import ref_kernel

honest_kernel = custom_kernel


def custom_kernel(data):
    honest_kernel([part[-1:] for part in data])
    return ref_kernel(data)
