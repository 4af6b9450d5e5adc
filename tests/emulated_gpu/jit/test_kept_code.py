"""Machine code is compiled once for all processes of a machine."""

import os

import pytest

from emulated_gpu import build_cache
from emulated_gpu.jit import llvm

TWICE = "define i64 @block(i64 %a) {\n %b = add i64 %a, %a\n ret i64 %b\n}\n"


def twice(compiler: llvm.Compiler) -> int:
    return compiler.function(TWICE)(21)


@pytest.fixture
def compiled(monkeypatch, tmp_path) -> list[str]:
    """Texts of which LLVM has made machine code. Nothing has been kept."""
    monkeypatch.setenv(build_cache.CACHE, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts: list[str] = []
    make = llvm.Compiler.machine_code
    monkeypatch.setattr(llvm.Compiler, "machine_code", lambda self, text: texts.append(text) or make(self, text))
    return texts


def test_another_process_takes_what_is_kept(compiled):
    """A compiler has no memory but the folder, as that of another process."""
    assert [twice(llvm.Compiler()) for _ in range(3)] == [42] * 3
    assert compiled == [TWICE]


def test_what_is_exported_is_written_once_for_one_text_of_its_writers(compiled, monkeypatch):
    """A text that is kept is not even written; where a file of its writers has changed, it is."""
    written = []

    def text() -> str:
        written.append(TWICE)
        return TWICE.replace("@block", "@twice_for_a_test")

    for _ in range(2):
        llvm.Compiler().export("twice_for_a_test", text)
    assert len(written) == len(compiled) == 1
    sources = llvm._sources()
    monkeypatch.setattr(llvm, "_sources", lambda: sources + b" ")
    llvm.Compiler().export("twice_for_a_test", text)
    assert len(written) == 2 and len(compiled) == 1


def test_what_is_kept_for_another_machine_is_not_taken(compiled, monkeypatch):
    twice(llvm.Compiler())
    monkeypatch.setattr(llvm, "PASSES", llvm.PASSES[:1])
    twice(llvm.Compiler())
    assert len(compiled) == 2


@pytest.mark.parametrize("left", [0, 20, -1], ids=["empty", "cut short", "a byte less"])
def test_a_damaged_file_is_made_again(compiled, tmp_path, left):
    twice(llvm.Compiler())
    (file,) = tmp_path.glob("machine-code-*/*")
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    assert twice(llvm.Compiler()) == 42
    assert len(compiled) == 2 and file.read_bytes() == whole


def test_without_room_all_is_as_before(compiled, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(build_cache, "keep", full)
    assert [twice(llvm.Compiler()) for _ in range(2)] == [42] * 2
    assert len(compiled) == 2


def test_what_was_used_last_stays(monkeypatch, tmp_path):
    monkeypatch.setenv(build_cache.CACHE, str(tmp_path))
    monkeypatch.setattr(build_cache, "MOST", 4)
    for n in range(4):
        build_cache.taken("kept", str(n), lambda: b"made")
        os.utime(tmp_path / "kept" / str(n), (n, n))
    assert build_cache.taken("kept", "0", lambda: b"made again") == b"made"
    build_cache.taken("kept", "4", lambda: b"made")
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == ["0", "3", "4"]
