"""The wheel, installed where there is no checkout: it runs scripts on the emulated GPU and brings its packages only."""

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import emulated_gpu
import ragged_moe
from tests.thorough import all_but

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"emulated_gpu", "ragged_moe"}
SITE = Path(sysconfig.get_path("purelib"))
SCRIPT = """
import subprocess, sys
import emulated_gpu, ragged_moe

print(emulated_gpu.__file__)
print(ragged_moe.__file__)
child = "import torch; print(torch.cuda.get_device_name())"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, as setuptools leaves its build folder in the sources."""
    folder = tmp_path_factory.mktemp("sources")
    for name in (*PACKAGES, "evaluation", "tests"):  # of which only the former belong into the wheel
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    for file in (*ROOT.glob("*.py"), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))):
        shutil.copy(file, folder)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--wheel-dir", folder / "dist", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [file] = (folder / "dist").glob("*.whl")
    return file


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The interpreter of an environment with the wheel and what it depends on, but without the editable install."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    shared = [SITE]  # a folder that a .pth file adds has its own .pth files ignored
    for pth in SITE.glob("*.pth"):
        if not pth.name.startswith("__editable__"):
            shared += [SITE / line for line in pth.read_text().splitlines() if not line.startswith("import ")]
    (site / "zz_shared.pth").write_text("".join(f"{path}\n" for path in shared))
    return folder / "bin" / "python"


def of_the_checkout() -> set[str]:
    """Names that a checkout's folder makes importable, and the wheel must not."""
    names = {path.stem for path in ROOT.glob("*.py")}
    names |= {path.name for path in ROOT.iterdir() if path.name.isidentifier() and next(path.rglob("*.py"), None)}
    assert {"task", "utils", "eval", "reference", "evaluation", "tests"} < names
    return names - PACKAGES


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "EMULATED_GPU_RUN")}


def run(python: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run([python, *arguments], cwd=folder, env=environment(), capture_output=True, text=True)


SCALE = "-m emulated_gpu run scale.py"


@pytest.mark.parametrize("command", all_but([SCALE], [SCALE, "experts.py"]))
def test_examples_run_outside_the_checkout(python, tmp_path, command):
    for example in (ROOT / "docs").glob("*.py"):
        shutil.copy(example, tmp_path)
    done = run(python, *command.split(), folder=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("right"), done.stderr


def test_scripts_and_their_children_use_what_was_installed(python, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run(python, "-m", "emulated_gpu", "run", "script.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    emulators, moes, child = done.stdout.split("\n", 2)
    [site] = python.parents[1].glob("lib/python*/site-packages")
    assert Path(emulators).parents[1] == Path(moes).parents[1] == site
    assert child.strip() == "NVIDIA B200 (emulated)"


def test_names_of_the_checkout_stay_there(python, tmp_path):
    names = sorted(of_the_checkout())
    code = f"import importlib.util; print([x for x in {names} if importlib.util.find_spec(x)])"
    done = run(python, "-c", code, folder=tmp_path)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_its_modules_import_nothing_that_only_a_checkout_has(wheel):
    """Imports anywhere in a file count: one inside a function fails only when it is called."""
    forbidden, found = of_the_checkout(), []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                for node in ast.walk(ast.parse(archive.read(name))):
                    if isinstance(node, ast.Import):
                        modules = [alias.name for alias in node.names]
                    elif isinstance(node, ast.ImportFrom) and not node.level:
                        modules = [node.module]
                    else:
                        continue
                    found += [(name, module) for module in modules if module.partition(".")[0] in forbidden]
    assert not found


def test_it_has_its_packages_their_data_and_a_version(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, metadata.partition("/")[0]}
    wanted = {
        "emulated_gpu/py.typed",
        "ragged_moe/py.typed",
        "emulated_gpu/model/profiles/b200.toml",
        "emulated_gpu/model/whole_kernels.json",
    }
    assert wanted < set(names)
    assert f"Version: {emulated_gpu.__version__}" in lines and emulated_gpu.__version__ == ragged_moe.__version__
    assert {"Provides-Extra: eval", "Provides-Extra: dev"} < set(lines)
