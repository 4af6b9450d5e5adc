"""A thread beside a block of work, which says how far that is."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def beside(watch: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run watch(over) in another thread while the block runs; `over` is set when it ends, and the thread awaited."""
    over = threading.Event()
    thread = threading.Thread(target=watch, args=(over,), daemon=True, name="emulated-gpu heartbeat")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
