"""Single files of an unzipped SGLang wheel, imported without the rest of it: its kernels are peers."""

import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path


def enter(folder: Path, file: str, packages: Iterable[str], stubs: Mapping[str, Mapping]) -> None:
    """Prepare the import of `file` of the wheel that was unzipped to this folder. ValueError if it is not there.

    packages: of SGLang, "" or ".name", entered without what their own __init__.py import. stubs: modules of SGLang that
    the file takes things from -> what it finds there instead.
    """
    if not (folder / file).is_file():
        raise ValueError(f"{folder} has no {file}, as sglang's 0.5.23 wheel has")
    for name in packages:
        package = types.ModuleType("sglang" + name)
        package.__path__ = [str(folder.joinpath("sglang", *name.split(".")))]
        sys.modules[package.__name__] = package
    for name, contents in stubs.items():
        module = types.ModuleType(f"sglang.{name}")
        vars(module).update(contents)
        sys.modules[module.__name__] = module
