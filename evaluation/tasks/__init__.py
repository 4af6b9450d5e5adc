"""Tasks that others wrote: folders of the form of gpu-mode/reference-kernels, and two more forms, read and imported.

The judge's rooms run them; ../README.md says what is held, docs/any_task.md how to use it.
"""
