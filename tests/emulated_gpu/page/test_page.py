"""The page of a profile: time by source line adds up, its verdicts hold, and it works in a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import emulated_gpu
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.errors import KINDS, NOTES
from emulated_gpu.finding_rows import of_runs, row_of
from emulated_gpu.model import report
from emulated_gpu.model.timeline import Timeline
from emulated_gpu.model.trace import Trace
from emulated_gpu.page import findings, hot, sass
from emulated_gpu.page.titles import TITLES
from emulated_gpu.page.write import DATA, views, write_page
from emulated_gpu.serve.run import Loud, report_of

ROOT = Path(__file__).resolve().parents[3]
# Every lane loads a word of a sector of its own, and keeps it in shared memory, where all lanes of a warp meet in one
# bank, and then where each has its own.
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
    mul.wide.u32 %rd1, %r0, 32;
    add.u64 %rd0, %rd0, %rd1;
    .loc 1 4 0
    ld.global.u32 %r1, [%rd0];
    .loc 1 5 0
    shl.b32 %r2, %r0, 7;
    mov.u32 %r3, smem;
    add.u32 %r3, %r3, %r2;
    st.shared.u32 [%r3], %r1;
    .loc 1 6 0
    mul.wide.u32 %rd1, %r0, 4;
    cvt.u32.u64 %r4, %rd1;
    mov.u32 %r3, smem;
    add.u32 %r3, %r3, %r4;
    st.shared.u32 [%r3], %r1;
    ret;
}
    .file 1 "own.py"
"""
SOURCE = "# line 1\n\nx = from_[8 * tid]\nload(x)\nsmem[tid * 32] = x  # </script>\nsmem[tid] = x\n"


@pytest.fixture(scope="module")
def profiled():
    source, trace = allocate(4096), Trace()
    with emulated_gpu.timing("b200", trace) as timed:
        for _ in range(2):
            emulated_gpu.launch(KERNEL, "conflict", 16, 128, [source], shared=128 * 128)
    return timed.run, trace, timed.counted


@pytest.fixture(scope="module")
def page(profiled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "own.py").write_text(SOURCE)
    run, trace, counted = profiled
    found = report.report(run, trace, counted, folder)
    write_page(folder / "page.html", "own.py <b>", run, trace, found, {"own.py": folder / "own.py"})
    return folder / "page.html"


def data_of(page: Path) -> dict:
    (view,) = views(page)
    return view


def test_time_of_lines_is_the_life_of_warps(profiled):
    run, trace, _ = profiled
    timeline = Timeline(run, trace)
    lines = hot.lines(hot.instructions(timeline), trace)
    wake = run.profile["sync"]["wake_cycles"]  # from the start of a warp to its first instruction
    lives = sum(timeline.us(span.end - span.start - wake) for span in trace.spans if span.kind == "warp")
    assert sum(line.us.total() for line in lines) == pytest.approx(lives)
    by_place = {str(line): line.us for line in lines}
    assert set(by_place) == {f"own.py:{number}" for number in range(3, 7)}
    assert by_place["own.py:5"][hot.LONG] > 0 == by_place["own.py:4"][hot.LONG]  # where it is used
    assert by_place["own.py:5"]["shared memory"] > 0  # 32 lanes, one bank
    assert by_place["own.py:3"]["instruction fetch"] > 0  # of each SM's first warp


def test_what_the_page_says(page):
    data = data_of(page)
    said = [verdict["text"] for verdict in data["verdicts"]]
    assert len(said) <= 5 and any(text.startswith("16 of 148 SMs have work in launch 0 (conflict)") for text in said)
    conflicts = next(v for v in data["verdicts"] if v["text"].startswith("32-way bank conflicts: shared memory"))
    assert conflicts["shown"] == "own.py:5"
    spread = {line["shown"]: line["spread"] for line in data["lines"]}
    assert spread == {
        "own.py:3": "", "own.py:4": "32 sectors of 32 bytes an access, 4 would do",
        "own.py:5": "32-way bank conflicts", "own.py:6": "",
    }  # fmt: skip
    figures = {line["shown"]: line["figures"] for line in data["lines"]}
    assert (figures["own.py:4"], figures["own.py:5"], figures["own.py:6"]) == ([32, 4, 0], [0, 0, 32], [0, 0, 0])
    assert {row[2].split()[0]: row[6] for row in data["ptx"] if len(row) > 5 and row[6][2] == 0} == {
        "ld.global.u32": [32, 4, 0]
    }
    assert data["sources"] == {"own.py": SOURCE.splitlines()}
    assert {run[0] for run in data["map"]["runs"]} == set(range(148))
    assert page.stat().st_size < 3e6
    own = (ROOT / "emulated_gpu" / "page" / "page.html").read_text()
    assert not re.search(r'(?:src|href)="(?!data:)|url\(|@import', own)  # nothing comes from elsewhere


EARLY = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry early(.param .u64 from)
{
    .reg .pred p; .reg .b32 v; .reg .b64 s; .shared .align 8 .b64 full; .shared .align 16 .b8 buffer[64];
    mbarrier.init.shared::cta.b64 [full], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 64;
    ld.param.u64 s, [from];
    .loc 1 4 0
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [buffer], [s], 64, [full];
    .loc 1 5 0
    ld.shared.b32 v, [buffer];
    ret;
}
    .file 1 "own.py"
"""


@pytest.fixture(scope="module")
def findings_page(tmp_path_factory):
    """Of a read of what a copy has not written yet."""
    folder = tmp_path_factory.mktemp("findings")
    (folder / "own.py").write_text(SOURCE)
    rows, page = folder / "rows.jsonl", folder / "findings.html"
    before, DEVICE.session = DEVICE.session, Loud(file=str(rows), events=True)
    try:
        with pytest.raises(emulated_gpu.Fault):
            emulated_gpu.launch(EARLY, "early", 1, 1, [allocate(64)])
    finally:
        DEVICE.session = before
    found = report_of([json.loads(line) for line in rows.read_text().splitlines()], 0, 1, events=True)
    findings.write_findings(page, "own.py <b>", findings.of_runs([found]), {"own.py": folder / "own.py"})
    return page


def test_a_finding_has_the_lines_and_the_events_of_both_parties(findings_page):
    data = json.loads(DATA.search(findings_page.read_text())[1])
    (one,) = data["findings"]
    assert (one["kind"], one["here"], one["there"]) == ("race", [[["own.py", 5]]], [[["own.py", 4]]])
    warp = "warp 0 of CTA (0, 0, 0)"
    tracks = [event[1] for event in one["events"]]
    assert one["warp"] == warp and tracks[:3] == [f"for {warp}", warp, f"for {warp}"]  # init, arrive, the copy
    assert one["events"][-1][2] in one["message"] and one["events"][-1][2].startswith("bulk copy of warp 0")
    assert data["sources"] == {"own.py": SOURCE.splitlines()}


def test_the_other_party_is_there_however_long_ago_it_was(monkeypatch):
    """Of each finding the last events before it, not before the end of the launch, and the other party's."""
    monkeypatch.setattr(findings, "MOST_EVENTS", 2)
    again = "    mbarrier.init.shared::cta.b64 [spare], 1;\n    mbarrier.inval.shared::cta.b64 [spare];\n" * 2
    spare = EARLY.replace(".shared .align 8 .b64 full;", ".shared .align 8 .b64 full; .shared .align 8 .b64 spare;")
    twice = spare.replace("    .loc 1 5", f"{again}    .loc 1 5").replace("    ret;", f"{again}    ret;")
    with emulated_gpu.session(most=9) as session:
        kept = []
        monkeypatch.setattr(session, "ended", lambda launch: kept.extend(findings.events(launch)))
        emulated_gpu.launch(twice, "early", 1, 1, [allocate(64)])
    race = next(error for error in session.errors if error.kind == "race")
    shown = findings.before(row_of("wrong", race) | {"events": kept})
    assert len(kept) > len(shown) and max(number for number, *_ in shown) <= race.event < kept[-1][0]
    assert [event[2] for event in shown if event[0] == race.other][0].startswith("bulk copy of warp 0")


def test_a_finding_of_several_schedules_is_one():
    """Whichever of the two lines was found to be the later one; another kernel's is another."""
    def found(schedule, here, there, kernel="k"):
        message, where = f"what warp 0 (PTX line {there}) writes", f"kernel {kernel}, warp 1, PTX line {here}: ld"
        fault = emulated_gpu.Fault("race", message, where)
        return {"schedule": schedule, "findings": [row_of("wrong", fault) | {"schedule": schedule, "launch": 1}]}

    one, other = of_runs([found(0, 3, 4), found(1, 4, 3), found(2, 3, 4), found(3, 3, 4, "j")])
    assert one["of"] == "schedule 0, launch 1, and 2 times more" and other["of"] == "schedule 3, launch 1"


def test_every_kind_of_finding_has_a_title_of_ten_words():
    assert set(TITLES) == {*KINDS, *NOTES, "hang", "unsupported", "error"}
    assert all(2 < len(title.split()) <= 10 for title in TITLES.values())


# As nvdisasm -c -hex -gp prints it
SASS = """\t.section\t.text.double,"ax",@progbits
\t//## File ".nv_debug_ptx_txt", line 36
        /*0010*/                   S2R R4, SR_TID.X ;                          /* 0x0000000000047919 */
                                                                               /* 0x000e220000002100 */
\t//## File ".nv_debug_ptx_txt", line 46
        /*0180*/              @!P1 LDG.E R0, desc[UR4][R4.64] ;                /* 0x0000000404009981 */
                                                                               /* 0x010ee4000c1e1900 */
"""


def test_sass_has_the_line_of_ptx_and_the_control_word():
    first, second = sass.read(SASS)["double"]
    assert first == (0x10, "S2R R4, SR_TID.X", 36, 1, ())
    assert second == (0x180, "@!P1 LDG.E R0, desc[UR4][R4.64]", 46, 2, (4,))


def test_sass_of_a_kernel(page):
    """Where there are a ptxas and nvdisasm."""
    if not all(any(sass.tools(name)) for name in ("ptxas", "nvdisasm")):
        pytest.skip("no ptxas, or no nvdisasm")
    rows = data_of(page)["sass"]
    of_line = {row[3]: row[2] for row in rows if "LDG" in row[2]}
    load = next(number for _, number, text, *_ in data_of(page)["ptx"] if text.startswith("ld.global"))
    assert [*of_line] == [load] and sass.sass("no PTX") == {} == sass.sass(".target sm_100a\nnonsense")


@pytest.mark.thorough
def test_the_page_of_findings_in_a_browser(findings_page, tmp_path):
    dumped = in_browser(findings_page, tmp_path, """
        data.canvases = document.querySelectorAll("canvas").length;
        data.here = document.querySelector("pre .here").textContent;
        data.title = document.querySelector("#findings button").textContent;
        data.unreachable = document.querySelectorAll("#findings li, .calls").length
          - document.querySelectorAll("#findings button, .calls button:first-child").length;
    """)  # fmt: skip
    assert 'data-title="Order these two accesses' in dumped and 'data-unreachable="0"' in dumped
    assert 'data-canvases="1"' in dumped and "smem[tid * 32] = x" in re.search(r'data-here="[^"]*"', dumped)[0]


CLICK = """<script>
addEventListener("error", (e) => { document.body.dataset.error = e.message; });
addEventListener("load", () => { const data = document.body.dataset; DO });
</script>"""


def in_browser(page: Path, folder: Path, do: str) -> str:
    """The tag of the page's body after it has loaded and done this, and a screenshot that is not blank."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    image = pytest.importorskip("matplotlib.image")
    clicked = folder / "clicked.html"
    clicked.write_text(page.read_text().replace("<meta charset", CLICK.replace("DO", do) + "<meta charset", 1))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/user"]
    command += ["--enable-blink-features=ComputedAccessibilityInfo"]
    dumped = subprocess.run(
        [*command, f"--screenshot={folder}/shot.png", "--window-size=1400,1400", "--dump-dom", clicked.as_uri()],
        capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip
    shot = image.imread(folder / "shot.png") if (folder / "shot.png").exists() else None
    if shot is None:
        subprocess.run([*command, f"--screenshot={folder}/shot.png", page.as_uri()], capture_output=True, timeout=120)
        shot = image.imread(folder / "shot.png")
    assert len({tuple(pixel) for pixel in shot[::7, ::7].reshape(-1, shot.shape[-1]).tolist()}) > 10
    body = re.search(r"<body[^>]*>", dumped)[0]
    assert "data-error" not in body
    return body


def test_the_page_in_a_browser(page, profiled, tmp_path):
    """It loads without an error, shows the answer first, and all of it works by keyboard; a screenshot is not blank."""
    run, trace, counted = profiled
    found = report.report(run, trace, counted, tmp_path) | {"partial": "half of it"}
    gain = {"undo": "conflicts", "share": 0.25, "gain": "with no bank conflicts at most 25 % less"}
    found["verdicts"] = [{"text": "32-way bank conflicts", "shown": "own.py:5"} | gain]
    against = tmp_path / "against.html"
    write_page(against, "own.py again", run, trace, found, {"own.py": page.with_name("own.py")}, baseline=page)
    body = in_browser(against, tmp_path, """
        const all = (where) => [...document.querySelectorAll(where)];
        const text = (where) => all(where).map((x) => x.textContent);
        const key = (at, name) => at.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
        const row = (name) => all("#hot tbody tr").find((x) => x.textContent.startsWith(name));
        key(row("own.py:5"), "Enter");
        data.marked = document.querySelector("#source .marked").textContent;
        data.ptx = all("#ptx .marked").length;
        data.canvases = all("canvas").length;
        data.silent = all("a[href], button, input, select, summary, table, [tabindex]").filter((x) => x.offsetParent
          && (x.computedRole === "generic" || !x.computedName)).map((x) => x.tagName + x.id).join(" ");
        data.roles = [...new Set(all("[tabindex], table, #ptx > div").map((x) => x.computedRole))].sort().join(" ");
        data.answer = text("#us, #bars, #baseline, #partial").join("|");
        data.shares = all("#shares .stack, #stalls .stack").map((x) => x.getAttribute("aria-label")).join("|");
        data.gain = text("#verdicts .gain").join("|");
        data.nav = text("nav a").join(" ");
        data.targets = all("nav a").filter((x) => document.querySelector(x.getAttribute("href"))).length;
        data.unreachable = all("#hot tbody tr, #hot th button, #verdicts button").filter((x) => x.tabIndex < 0).length;
        const head = all("#hot th button").find((x) => x.textContent === "line");
        head.click();
        data.first = text("#hot tbody tr td")[0] + " " + head.parentElement.getAttribute("aria-sort");
        head.click();
        data.last = text("#hot tbody tr td")[0] + " " + head.parentElement.getAttribute("aria-sort");
        row("own.py:6").focus();
        key(document.activeElement, "ArrowDown");
        data.focus = document.activeElement.firstChild.textContent;
        const find = document.querySelector("#find");
        find.value = "32-way bank";
        find.dispatchEvent(new Event("input"));
        data.found = text("#hot tbody tr td:first-child").join(" ");
        find.value = "";
        find.dispatchEvent(new Event("input"));
        const by = document.querySelector("#by");
        by.selectedIndex = 1;
        by.dispatchEvent(new Event("change"));
        all("#hot th button").find((x) => x.textContent === "sectors").click();
        data.sectors = text("#hot tbody tr:first-child td").join(" ");
        all("#hot th button").find((x) => x.textContent === "bank conflicts").click();
        data.conflicts = text("#hot tbody tr:first-child td").join(" ");
        const ptx = document.querySelector("#ptx");
        key(ptx, "ArrowDown");
        data.active = ptx.querySelector("#" + ptx.getAttribute("aria-activedescendant")).textContent;
        key(ptx, "Enter");
        data.picked = document.querySelector("#ptx .marked").textContent;
        data.sass = text("#sass div").find((x) => x.includes("LDG")) || "";
        const load = all("#sass div").find((x) => x.textContent.includes("LDG"));
        if (load) load.click();
        data.loaded = document.querySelector("#source .marked").textContent;
        data.three = all("#source, #ptx, #sass").map((x) => x.offsetTop === ptx.offsetTop).join(" ");
        data.occupancy = text("#kernels dd")[3];
        data.memory = text("#memory").join();
        data.wide = document.documentElement.scrollWidth - innerWidth;
        data.tables = all(".scroll").filter((x) => x.scrollWidth > x.clientWidth + 1).map((x) => x.id).join(" ");
    """)  # fmt: skip
    told = dict(re.findall(r'data-([a-z]+)="([^"]*)"', body))
    assert "smem[tid * 32] = x" in told["marked"] and (told["ptx"], told["canvases"]) == ("4", "2")
    for shown in ("us no bracket: ", "floor by HBM", "Partial: half of it", "baseline own.py", "this takes 0.0 % less"):
        assert shown in told["answer"]
    assert "between launches " in told["shares"] and "|time of all warps: " in told["shares"]
    assert told["gain"] == "-25 %with no bank conflicts at most 25 % less"
    assert told["nav"].startswith("Verdicts Kernels Memory Roofline Stalls Hot spots") and told["targets"] == "9"
    assert told["unreachable"] == "0" and told["silent"] == ""
    assert told["roles"] == "listbox option region row table", "as a screen reader is told"
    assert (told["first"], told["last"]) == ("own.py:3 ascending", "own.py:6 descending")
    assert told["focus"] == "own.py:5" and told["found"] == "own.py:5"
    assert "ld.global.u32" in told["sectors"] and " 32 4 " in told["sectors"]
    assert "st.shared.u32" in told["conflicts"]
    assert told["active"][-20:] == told["picked"][-20:]
    if data_of(against)["sass"]:  # there are ptxas and nvdisasm
        assert "LDG" in told["sass"] and "load(x)" in told["loaded"] and told["three"] == "true true true"
    assert "81 % of an SM's warps in theory" in told["occupancy"] and "HBM" in told["memory"]
    assert int(told["wide"]) <= 0 and told["tables"] == ""


def test_a_baseline_is_a_page_of_a_profile(tmp_path):
    other = tmp_path / "other.html"
    other.write_text("<p>nothing")
    with pytest.raises(ValueError, match="other.html is no page of a profile"):
        views(other)
