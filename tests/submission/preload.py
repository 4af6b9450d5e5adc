"""What a judge's worker imports anyway. The fault tests import it once, in the process that their workers fork from."""

import emulator
import evaluation.worker  # noqa: F401
from tests import quick_dsl

emulator.install()  # imports the DSL
quick_dsl.install()
