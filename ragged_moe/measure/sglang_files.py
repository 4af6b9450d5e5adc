"""Single files of an unzipped SGLang wheel, imported without the rest of it: its kernels are peers."""

import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path


def enter(folder: Path, needed: Iterable[str], packages: Iterable[str], stubs: Mapping[str, Mapping]) -> None:
    """Prepare the import of a file of the wheel that was unzipped to this folder.

    needed: its files and folders without which there is no peer, or a slower one; ValueError if one is not there.
    packages: of SGLang, "" or ".name", entered without what their own __init__.py import. stubs: modules of SGLang that
    it takes things from -> what it finds there instead.
    """
    for name in needed:
        if not (folder / name).exists():
            raise ValueError(f"{folder} has no {name}, as sglang's 0.5.23 wheel has")
    for name in packages:
        package = types.ModuleType("sglang" + name)
        package.__path__ = [str(folder.joinpath("sglang", *name.split(".")))]
        sys.modules[package.__name__] = package
    for name, contents in stubs.items():
        module = types.ModuleType(f"sglang.{name}")
        vars(module).update(contents)
        sys.modules[module.__name__] = module
