"""What a judge's worker imports anyway: tests import it once, in the process that the judge's are forked from."""

import os
import tempfile

import emulated_gpu
import evaluation.judge.worker  # noqa: F401
from tests import quick_dsl

emulated_gpu.install()
quick_dsl.install()  # imports the DSL
os.chmod(os.environ["CUTE_DSL_DUMP_DIR"], 0o777)  # where it writes PTX, also as the user that a worker becomes
quick_dsl.collect_garbage_rarely()
tempfile.tempdir = None  # a worker has a folder of its own, and may write nowhere else
