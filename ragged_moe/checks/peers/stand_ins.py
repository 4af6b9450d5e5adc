"""Modules of a peer's package without its build: its own sources, served functions, placeholders."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path


class NotServed(BaseException):
    """A test has called what is not served here, of this name. No Exception, which a test might expect."""


class Absent:
    """Stands for anything of a peer's that is not served: harmless while a file is imported, refused in a test."""

    in_test = False  # whether a test is running, whose calls count

    def __init__(self, name: str):
        self.name = name

    def used(self):
        """NotServed in a test; else another placeholder."""
        if Absent.in_test:
            raise NotServed(self.name)
        return Absent(self.name)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.name}.{name}")

    def __call__(self, *_, **__):
        return self.used()

    def __getitem__(self, _):
        return self.used()

    def __bool__(self) -> bool:
        self.used()
        return False

    def __iter__(self):
        self.used()
        return iter(())

    def __enter__(self):
        return self.used()

    def __exit__(self, *_) -> None: ...

    def __repr__(self) -> str:
        return self.name

    def __or__(self, _):  # in annotations
        return self

    def __instancecheck__(self, _) -> bool:
        return False

    def __mro_entries__(self, _) -> tuple:
        return ()

    __ror__, __lt__, __le__, __gt__, __ge__ = __or__, *[__instancecheck__] * 4


class StandIn(types.ModuleType):
    """A module whose contents are those that are served, by their last names; placeholders are all others.

    What is served by the module's own name is all that it has, whatever it is asked for.
    """

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        served = self.__loader__.served
        if self.__name__ in served:
            return served[self.__name__]
        return served[name] if name in served else Absent(f"{self.__name__}.{name}")


class Loader(importlib.abc.Loader):
    """Makes stand-ins."""

    def __init__(self, served: Mapping[str, object]):
        self.served = served

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module) -> None: ...


class Own(importlib.machinery.SourceFileLoader):
    """Loads a peer's file as it is, but for what is served in place of something of it."""

    def __init__(self, name: str, path: str, served: Mapping[str, object]):
        super().__init__(name, path)
        self.served = served

    def exec_module(self, module) -> None:
        super().exec_module(module)
        for name in self.served.keys() & vars(module).keys():
            setattr(module, name, self.served[name])


class Finder(importlib.abc.MetaPathFinder):
    """Finds any module below `packages`: the peer's own where it is one of `own` and there, else a stand-in.

    sources: the folder in which the peer's package is. own: names of modules, or of packages with all that they have.
    """

    def __init__(self, sources: Path, packages: Sequence[str], own: Sequence[str], served: Mapping[str, object]):
        self.sources, self.packages, self.own, self.served = sources, set(packages), own, served

    def find_spec(self, name: str, *_):
        if name.partition(".")[0] not in self.packages:
            return None
        file = self.sources.joinpath(*name.split(".")).with_suffix(".py")
        if file.is_file() and any(name == x or name.startswith(x + ".") for x in self.own):
            return importlib.util.spec_from_file_location(name, file, loader=Own(name, str(file), self.served))
        spec = importlib.machinery.ModuleSpec(name, Loader(self.served), is_package=True)
        spec.submodule_search_locations = []
        return spec

    def install(self) -> None:
        """From now on imports find them; sources beside are found, too, such as a peer's folder `tests`."""
        sys.meta_path.insert(0, self)
        sys.path.insert(0, str(self.sources))
        for name in [x for x in sys.modules if x.partition(".")[0] == "tests"]:  # another's of that name
            del sys.modules[name]
