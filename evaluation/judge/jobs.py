"""Shares jobs between workers that each do one at a time."""

import threading
from collections.abc import Callable, Iterable, Sequence

THREAD = "shares jobs"  # the name of the threads


def shared() -> bool:
    """Says whether jobs are being done, or told as done."""
    return any(thread.name == THREAD and thread.is_alive() for thread in threading.enumerate())


def share(jobs: Iterable, workers: Sequence, work: Callable, done: Callable) -> None:
    """Calls work(worker, job) for every job, in their order, on whichever worker is free; then done(job, result), one
    at a time. There is a thread for each worker; all have ended on return. Neither function may raise."""
    waiting, lock = iter(jobs), threading.Lock()

    def take():
        with lock:
            return next(waiting, waiting)  # itself when there is none: no job is that

    def serve(worker):
        while (job := take()) is not waiting:
            result = work(worker, job)
            with lock:
                done(job, result)

    threads = [threading.Thread(target=serve, args=(worker,), name=THREAD, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # Python calls no signal handler while it waits, if the signal came just before
            thread.join(0.1)
