"""torch's device `cuda`, which torch itself believes in: tensors, operators, streams, compilers.

`install.install()` serves it in this process; a library of C++, built once, is what torch's dispatcher calls.
"""
