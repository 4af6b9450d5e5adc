"""The page of a profile: time by source line adds up, its verdicts hold, and it works in a browser."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import emulator
from emulator.device import allocate
from emulator.model import report
from emulator.model.timeline import Timeline
from emulator.model.trace import Trace
from emulator.page import hot
from emulator.page.write import views, write

ROOT = Path(__file__).resolve().parents[2]
# Every lane loads a word, and keeps it where all lanes of a warp meet in one bank of shared memory.
KERNEL = """
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 128 .b8 smem[];
.visible .entry conflict(.param .u64 from)
{
    .reg .b32 %r<6>; .reg .b64 %rd<3>;
    .loc 1 3 0
    ld.param.u64 %rd0, [from];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd0, %rd0, %rd1;
    .loc 1 4 0
    ld.global.u32 %r1, [%rd0];
    .loc 1 5 0
    shl.b32 %r2, %r0, 7;
    mov.u32 %r3, smem;
    add.u32 %r3, %r3, %r2;
    st.shared.u32 [%r3], %r1;
    ret;
}
    .file 1 "own.py"
"""
SOURCE = "# line 1\n\nx = from_[tid]\nload(x)\nsmem[tid * 32] = x  # </script>\n"


@pytest.fixture(scope="module")
def profiled():
    source, trace = allocate(4096), Trace()
    with emulator.timing("b200", trace) as timed:
        for _ in range(2):
            emulator.launch(KERNEL, "conflict", 16, 128, [source], shared=128 * 128)
    return timed.run, trace, timed.counted


@pytest.fixture(scope="module")
def page(profiled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "own.py").write_text(SOURCE)
    run, trace, counted = profiled
    found = report.report(run, trace, counted, folder)
    write(folder / "page.html", "own.py <b>", run, trace, found, {"own.py": folder / "own.py"})
    return folder / "page.html"


def data_of(page: Path) -> dict:
    (view,) = views(page)
    return view


def test_time_of_lines_is_the_life_of_warps(profiled):
    run, trace, _ = profiled
    timeline = Timeline(run, trace)
    lines = hot.lines(hot.instructions(timeline))
    wake = run.profile["sync"]["wake_cycles"]  # from the start of a warp to its first instruction
    lives = sum(timeline.us(span.end - span.start - wake) for span in trace.spans if span.kind == "warp")
    assert sum(line.us.total() for line in lines) == pytest.approx(lives)
    by_place = {str(line): line.us for line in lines}
    assert set(by_place) == {"own.py:3", "own.py:4", "own.py:5"}
    assert by_place["own.py:4"]["global loads"] > 0 == by_place["own.py:5"]["global loads"]
    assert by_place["own.py:5"]["shared memory"] > 0  # 32 lanes, one bank


def test_what_the_page_says(page):
    data = data_of(page)
    said = [verdict["text"] for verdict in data["verdicts"]]
    assert len(said) <= 5 and any(text.startswith("16 of 148 SMs have work in launch 0 (conflict)") for text in said)
    conflicts = next(v for v in data["verdicts"] if v["text"].startswith("shared memory (bank conflicts"))
    assert conflicts["shown"] == "own.py:5"
    assert data["sources"] == {"own.py": SOURCE.splitlines()}
    assert {run[0] for run in data["map"]["runs"]} == set(range(148))
    assert page.stat().st_size < 3e6
    own = (ROOT / "emulator" / "page" / "page.html").read_text()
    assert not re.search(r'(?:src|href)="(?!data:)|url\(|@import', own)  # nothing comes from elsewhere


CLICK = """<script>
addEventListener("error", (e) => { document.body.dataset.error = e.message; });
addEventListener("load", () => {
  const rows = [...document.querySelectorAll("#hot tbody tr")];
  rows.find((row) => row.textContent.startsWith("own.py:5")).click();
  document.body.dataset.marked = document.querySelector("#source .marked").textContent;
  document.body.dataset.ptx = document.querySelectorAll("#ptx .marked").length;
  document.body.dataset.canvases = document.querySelectorAll("canvas").length;
});
</script>"""


def test_the_page_in_a_browser(page, tmp_path):
    """It loads without an error, a click on a hot spot shows its line, and a screenshot is not blank."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    image = pytest.importorskip("matplotlib.image")
    clicked = tmp_path / "clicked.html"
    clicked.write_text(page.read_text().replace("<meta charset", CLICK + "<meta charset", 1))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/user"]
    dumped = subprocess.run(
        [*command, f"--screenshot={tmp_path}/shot.png", "--window-size=1000,1400", "--dump-dom", clicked.as_uri()],
        capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip
    body = re.search(r"<body[^>]*>", dumped)[0]
    assert "data-error" not in body
    assert "smem[tid * 32] = x" in body and 'data-ptx="5"' in body and 'data-canvases="2"' in body
    shot = image.imread(tmp_path / "shot.png") if (tmp_path / "shot.png").exists() else None
    if shot is None:
        subprocess.run([*command, f"--screenshot={tmp_path}/shot.png", page.as_uri()], capture_output=True, timeout=120)
        shot = image.imread(tmp_path / "shot.png")
    assert len({tuple(pixel) for pixel in shot[::7, ::7].reshape(-1, shot.shape[-1]).tolist()}) > 10
