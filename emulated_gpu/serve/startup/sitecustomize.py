"""Python runs this at its start where `python -m emulated_gpu run` put this folder on PYTHONPATH: in every process that
the script starts. It waits until torch or CuTe DSL is imported, then installs the emulated device."""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class InstallAfterImport:
    """A finder that adds `install` to the first of the modules that is executed."""

    modules = ("torch", "cutlass")

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_install(module):
            if cls in sys.meta_path:
                sys.meta_path.remove(cls)
            sys.path.append(os.path.abspath(os.path.join(HERE, *[os.pardir] * 3)))  # where emulated_gpu/ is
            from emulated_gpu.serve.run import configure, install

            configure()
            execute(module)
            install()

        spec.loader.exec_module = execute_and_install
        return spec


class ForbidBeforeImport:
    """A finder that forbids installs, in processes that import an installer before torch or CuTe DSL: `-m pip`."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in ("pip", "ensurepip") and os.environ.get("EMULATED_GPU_INSTALLS") != "1":
            why = "a script may not install packages (`run --installs` lets it)"
            print(f"emulated-gpu: '{name}': {why}", file=sys.stderr)
            raise SystemExit(1)


sys.meta_path[:0] = [InstallAfterImport, ForbidBeforeImport]

# The sitecustomize that this one hides.
elsewhere = [p for p in sys.path if os.path.abspath(p) != HERE]
hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
if hidden is not None:
    hidden.loader.exec_module(importlib.util.module_from_spec(hidden))
