"""The dashboard in a real browser: what it shows of recorded runs, and how it follows one that changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from recorded_runs import ACTORS, LEARNER, descent_rows, row, status, write_lineage, write_population, write_run

from tessera import policies
from tessera.graph.plan import Needs, make_plan

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make test-browser` installs one")
NEEDS = Needs("impala", "cartpole", device_env=False, batch=None, priorities=False, absorbs=False)
GIF = bytes.fromhex("47494638396101000100800000ffffff00000021f90401000000002c00000000010001000002024401003b")
HOSTILE = '<img src=x onerror="document.title=1">'


def write_all(folder: Path, name: str, seed: int = 0, **config: Any) -> Path:
    """A run with a plan, a status, marks and spans."""
    run = write_run(folder / name, 40, {"seed": seed, **config}, status=status(), spans=spans())
    plan = make_plan(policies.get("single_learner_coarse", actors=2, mode="async"), NEEDS, 16)
    (run / "plan.json").write_text(json.dumps(plan.to_json()))
    mark = {"time": time.time(), "seconds": 5.0, "update": 10, "env_steps": 1280, "kind": "death", "place": 1}
    (run / "live" / "marks.jsonl").write_text(json.dumps({**mark, "text": f"{ACTORS}/1 died {HOSTILE}"}) + "\n")
    return run


def spans() -> dict[str, Any]:
    """The newest second of two replicas."""
    acting = [[0, 0, k / 100, 0.004, 0] for k in range(100)]
    learning = [[1, 0, k / 100, 0.008, 0] for k in range(100)]
    replicas = [(0, f"{ACTORS}/0", acting), (2, f"{LEARNER}/0", learning)]
    shown = [{"place": place, "title": title, "spans": found} for place, title, found in replicas]
    return {"format": 1, "time": 1.0, "begin": 0.0, "end": 1.0, "names": ["acting", "learning"], "slots": [""],
            "replicas": shown}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages, and fails if one of them had an error, or asked anybody but its own server."""
    pages: list[Any] = []
    errors: list[str] = []

    def open_one(address: str, width: int = 1280, scheme: str = "light", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: foreign(request.url, address) and errors.append(f"asked {request.url}"))
        pages.append(page)
        page.goto(address)
        return page

    open_one.errors = errors  # type: ignore[attr-defined]
    yield open_one
    for page in pages:
        page.context.close()
    assert errors == []


def foreign(url: str, address: str) -> bool:
    return not url.startswith(("data:", "blob:")) and urlsplit(url).netloc != urlsplit(address).netloc


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard of three runs, one of them with hostile words."""
    from conftest import Dashboard

    folder = tmp_path_factory.mktemp("runs")
    (write_all(folder, "impala_1") / "trace.json").write_text('{"traceEvents": []}')
    write_all(folder, "impala_2", seed=1)
    write_all(folder, f"evil {HOSTILE.replace('/', '')}", note=HOSTILE, policy=f"<script>{HOSTILE}</script>")
    started = Dashboard(folder, "--port", 0)
    yield started.address
    started.process.kill()
    started.process.communicate()


def without_side_scroll(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def brightness(page: Any) -> float:
    """Of the page's background, from 0 to 255."""
    words = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, words.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_the_overview_lists_runs_which_can_be_filtered_and_compared(served, open_page):
    page = open_page(served)
    page.wait_for_selector("text=3 runs, 3 of them live")
    page.fill("input[type=search]", "impala_")
    assert page.locator("tbody tr").count() == 2
    for box in page.locator("tbody input[type=checkbox]").all():
        box.check()
    page.click("text=Compare 2 runs")
    page.wait_for_selector("text=interquartile mean")
    assert page.locator("figure canvas").count() >= 3
    row = page.locator(".config tbody tr")
    row.first.wait_for()
    assert row.all_inner_texts() == ["seed\t0\t1"] or row.all_inner_texts() == ["seed\t1\t0"]
    page.check("text=also what is the same")
    assert "algorithm.learning_rate\t0.003\t0.003" in row.all_inner_texts()
    page.click("text=each run")
    page.wait_for_selector("text=interquartile mean", state="detached")


def test_a_run_is_shown_with_all_that_is_known_of_it(served, open_page):
    page = open_page(f"{served}#run=impala_1")
    page.wait_for_selector("text=The learner waits 62 % of the time for experience.")
    assert page.locator(".state-name").inner_text() == "running"
    tiles = dict(tile.split("\n")[:2] for tile in page.locator(".tile").all_inner_texts())
    assert tiles["Return"] == "40"
    assert tiles["Updates"] == "40"
    dots = page.locator(".plan .dot")
    assert dots.evaluate_all("all => all.map(dot => dot.getAttribute('class'))") == ["dot working"] * 2 + [
        "dot waiting"
    ]
    assert dots.locator("title").first.text_content() == f"{ACTORS}/0: working"
    label = page.locator(".plan .edge", has_text="experience").first
    assert "1.00 MB/s · lag 1.5, max 3" in label.text_content()
    assert "4 dropped" in label.text_content()
    assert page.locator(".keys").first.inner_text().split("\n") == ["2 working", "1 waiting"]
    page.wait_for_selector("figure[aria-label=Return] canvas")
    assert page.locator("figure[aria-label=Return] .value b").inner_text() == "40"
    assert page.locator("#timeline canvas").is_visible()
    assert "learning_rate" in page.locator("#config").inner_text()
    assert "death" in page.locator("#events").inner_text()
    page.click("text=Shares of the time")
    rows = page.locator("#timeline tbody tr")
    rows.first.wait_for()
    shares = rows.all_inner_texts()
    assert shares == [f"{ACTORS}/0\t40 %\t0 %", f"{LEARNER}/0\t0 %\t80 %"]


def test_a_trace_is_downloaded_for_perfetto_and_sent_nowhere(served, open_page):
    page = open_page(f"{served}#run=impala_2")
    page.wait_for_selector("text=With --trace RUN/trace.json")
    page = open_page(f"{served}#run=impala_1")
    with page.expect_download() as download:
        page.click("text=Download the trace")
    assert json.loads(Path(download.value.path()).read_text()) == {"traceEvents": []}


def test_everything_can_be_reached_with_the_keyboard(served, open_page):
    page = open_page(f"{served}#run=impala_1")
    page.wait_for_selector("#config dd")
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim().slice(0, 20)"))
        if seen[-1] == "Replicas" and seen.count("Replicas") == 1:  # after the last one, the first has its turn again
            page.keyboard.press("Enter")
    assert {"Skip to content", "Tessera", "Dark", "Replicas", "seconds", "0.2 s", "all"} <= set(seen)
    table = page.locator("#plan tbody tr").all_inner_texts()
    assert len(table) == 3
    assert table[2].startswith(f"{LEARNER}/0\t waiting")


def test_curves_share_a_cursor_and_an_axis(served, open_page, until):
    page = open_page(f"{served}#run=impala_1")
    values = page.locator("figure .value.soft")
    chart = page.locator("figure[aria-label=Return]")
    over = chart.locator(".u-over")
    width = int(over.bounding_box()["width"])

    def pointed_at(x: int) -> list[str]:
        """What all charts say is under the cursor; a chart that has just been drawn anew says nothing yet."""
        over.hover(position={"x": x - 1, "y": 60})
        over.hover(position={"x": x, "y": 60})
        return values.all_inner_texts()

    shown = until(lambda: (found := pointed_at(200)) and len(found) >= 3 and found)
    assert len(set(shown)) == 1
    assert any(f"{ACTORS}/1 died {HOSTILE}" in "".join(pointed_at(x)) for x in range(width // 5, width // 4, 6)), (
        "a mark is told"
    )
    page.click("text=seconds >> nth=0")
    until(lambda: (found := pointed_at(200)) and found[0].endswith(" s"))


def test_words_of_a_run_are_text(served, open_page):
    page = open_page(served)
    page.click("text=evil")
    page.wait_for_selector("#config dd")
    assert HOSTILE in page.locator("#config").inner_text()
    assert HOSTILE in page.locator("#events").inner_text()
    assert f"<script>{HOSTILE}</script>" in page.locator(".what").inner_text()
    assert page.locator("main img, main script").count() == 0
    assert "evil" in page.title()


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_long_names_are_broken_and_states_are_not(runs, dashboard, open_page, width):
    words = "a_name_that_has_no_end_" * 9
    for name, seed in ((words, 0), ("b", 1)):
        write_all(runs, name, seed=seed, policy=words, env=words)
    started = dashboard(runs, "--port", 0)
    page = open_page(started.address, width)
    page.wait_for_selector("text=2 runs")
    assert without_side_scroll(page)
    for word in page.locator(".state-word").all():
        assert word.evaluate("node => node.getClientRects().length") == 1
    page.goto(f"{started.address}#compare={words}&compare=b")
    page.wait_for_selector(".config tbody tr")
    assert without_side_scroll(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_their_screen_in_light_and_dark(served, open_page, width, scheme):
    page = open_page(f"{served}#run=impala_1", width, scheme)
    page.wait_for_selector("figure[aria-label=Return] canvas")
    assert without_side_scroll(page)
    assert (brightness(page) > 128) == (scheme == "light")
    text = page.locator(".plan svg text").first.evaluate("node => node.getBoundingClientRect().height")
    assert text >= 11, "the picture can be read"
    page.click("#theme")
    assert (brightness(page) > 128) == (scheme == "dark")
    for rest in (f"#{'&'.join(f'compare={name}' for name in ('impala_1', 'impala_2'))}", "#"):
        page.goto(served + rest)
        page.wait_for_selector("h1")
        page.wait_for_load_state("networkidle" if rest == "" else "load")
        assert without_side_scroll(page)


def test_nothing_moves_for_those_who_ask_for_that(served, open_page):
    moving = ".plan .flowing .flow"
    page = open_page(f"{served}#run=impala_1")
    page.wait_for_selector(moving, state="attached")
    assert page.locator(moving).first.evaluate("node => getComputedStyle(node).animationName") == "flow"
    page = open_page(f"{served}#run=impala_1", reduced_motion="reduce")
    page.wait_for_selector(moving, state="attached")
    assert page.locator(moving).first.evaluate("node => getComputedStyle(node).animationName") == "none"


def test_a_page_follows_its_run_and_says_when_it_hears_nothing(runs, dashboard, open_page):
    run = write_all(runs, "mine")
    started = dashboard(runs, "--port", 0)
    page = open_page(f"{started.address}#run={quote('mine')}")
    second = page.locator(".plan .dot").nth(1)
    page.wait_for_selector(".plan .dot.working")
    for state in ("dead", "restarting", "working"):
        found = status()
        found["replicas"][1]["state"] = state
        (run / "live" / "status.json").write_text(json.dumps(found))
        page.wait_for_function(
            "state => document.querySelectorAll('.plan .dot')[1].classList.contains(state)", arg=state, timeout=5000
        )
    assert "working" in second.locator("title").text_content()
    found["replicas"][1]["restarts"] = 1  # it died and was replaced while nobody looked
    (run / "live" / "status.json").write_text(json.dumps(found))
    page.wait_for_selector(".plan .dot.dead")
    page.wait_for_selector(".plan .dot.dead", state="detached")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"update": 41, "env_steps": 9999, "seconds": 30.0, "train_return_mean": 77.0}) + "\n")
    page.wait_for_selector("figure[aria-label=Return] .value b >> text=77")
    (run / "live" / "status.json").write_text(json.dumps(status(time=time.time() - 60, pid=2**22 + 1)))
    page.wait_for_selector("text=no sign of life since")


def test_the_last_row_is_drawn_however_soon_it_follows_another(runs, dashboard, open_page):
    run = write_all(runs, "mine")
    page = open_page(f"{dashboard(runs, '--port', 0).address}#run=mine")
    value = "figure[aria-label=Return] .value b"
    page.wait_for_selector(f"{value} >> text=40")
    page.wait_for_timeout(2500)
    for update in (41, 42, 43):
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row(update)) + "\n")
        page.wait_for_timeout(700)  # events come twice a second, curves every two seconds
    page.wait_for_selector(f"{value} >> text=43")


def test_tabs_that_nobody_sees_leave_the_connections_to_others(runs, dashboard, open_page):
    run = write_all(runs, "mine")
    address = f"{dashboard(runs, '--port', 0).address}#run=mine"
    tabs = [open_page(address)]
    hidden = "now => { document.isHidden = now; document.dispatchEvent(new Event('visibilitychange')); }"
    tell = "Object.defineProperty(document, 'hidden', { get: () => document.isHidden ?? false })"
    tabs[0].context.add_init_script(tell)
    tabs[0].reload()
    for _ in range(8):  # browsers keep six connections to a server
        tabs[-1].wait_for_selector("#connection >> text=/^connected/")
        tabs[-1].evaluate(hidden, True)
        tabs.append(tabs[0].context.new_page())
        tabs[-1].goto(address, timeout=10_000)
        tabs[-1].wait_for_selector("figure[aria-label=Return] canvas")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"update": 41, "env_steps": 9999, "seconds": 30.0, "train_return_mean": 77.0}) + "\n")
    tabs[-1].wait_for_selector("figure[aria-label=Return] .value b >> text=77")
    assert tabs[0].locator("figure[aria-label=Return] .value b").inner_text() == "40"
    tabs[0].evaluate(hidden, False)
    tabs[0].wait_for_selector("figure[aria-label=Return] .value b >> text=77")


def test_a_page_says_when_its_server_is_gone_and_comes_back(runs, dashboard, open_page):
    write_all(runs, "mine")
    started = dashboard(runs, "--port", 0)
    port = urlsplit(started.address).port
    page = open_page(f"{started.address}#run=mine")
    page.wait_for_selector("#connection >> text=/^connected/")
    started.stop()
    page.wait_for_selector("text=not connected, trying again")
    dashboard(runs, "--port", port)
    page.wait_for_selector("#connection >> text=/^connected/")
    open_page.errors[:] = [e for e in open_page.errors if "ERR_" not in e]  # the browser's own words about the server


def test_a_report_is_the_same_page_without_a_server(tmp_path, open_page):
    from tessera.dash.report import report

    write_all(tmp_path, "mine")
    (tmp_path / "mine.html").write_text(report(tmp_path, "mine"))
    page = open_page((tmp_path / "mine.html").as_uri())
    page.wait_for_selector("figure[aria-label=Return] .value b >> text=40")
    assert page.locator("#connection").inner_text() == "saved report"
    assert page.locator(".plan .dot.working").count() == 2
    assert page.locator("#timeline canvas").is_visible()
    assert HOSTILE in page.locator("#events").inner_text()
    page.click("text=seconds >> nth=0")
    page.wait_for_selector("figure[aria-label=Return] canvas")


def test_members_and_videos_are_shown_where_there_are_any(runs, dashboard, open_page):
    write_all(runs, "several", seeds=2)
    for seed in (0, 1):
        write_all(runs, f"several/seed-{seed}", seed=seed)
    (runs / "several" / "videos").mkdir()
    for file in ("update_000010.mp4", "update_000020.gif"):
        (runs / "several" / "videos" / file).write_bytes(GIF)
    page = open_page(f"{dashboard(runs, '--port', 0).address}#run=several")
    page.wait_for_selector(".videos img")
    captions = page.locator(".videos figcaption").all_inner_texts()
    assert [words.split(" · ")[0] for words in captions] == ["after update 20", "after update 10"]
    assert page.locator(".videos img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    page.click("#members >> text=several/seed-1")
    page.wait_for_selector("h1 >> text=several/seed-1")
    page.wait_for_selector("#config dl")  # the run's answer has come
    assert page.locator("#members").is_hidden()
    assert page.locator(".videos").is_hidden()


def test_a_population_is_shown_with_its_lineage_and_followed(runs, dashboard, open_page):
    rows = [{**each, "tuned": {**each["tuned"], HOSTILE: 1.5}} for each in descent_rows()]
    folder = write_population(runs / "pop", rows[:6])
    page = open_page(f"{dashboard(runs, '--port', 0).address}#run=pop")
    section = page.locator("#lineage")
    section.locator("text=3 members, 1 copy. The best member, seed 0, is no copy of another.").wait_for()
    assert page.locator("#members tbody tr").nth(2).inner_text().split("\t")[-4:] == ["0", "0.0700", "0.200", "1.50"]
    assert section.locator("svg > text.best").text_content() == "seed 0"
    write_lineage(folder, rows)
    section.locator("text=2 copies. The best member, seed 0, comes from seed 0, then seed 2.").wait_for()
    assert page.locator("#members thead tr").inner_text().strip().split("\t")[-4:] == [
        "copied from", "learning rate", "clip", HOSTILE]  # fmt: skip
    assert section.locator(".descent").bounding_box()["height"] > 50, "it goes to the lane of seed 2 and back"
    section.locator(".told:has(.copy) circle").nth(1).hover()
    told = f"seed 0 (return 10) goes on from seed 2 (return 14) · learning rate 0.0900 · clip 0.200 · {HOSTILE} 1.50"
    assert section.locator(".told-words").inner_text() == f"update 8: {told}"
    section.locator("summary").click()
    copies = section.locator("tbody tr")
    copies.first.wait_for()
    assert copies.all_inner_texts() == ["8\t0\t10\t2\t14\t0.0900\t0.200\t1.50", "4\t2\t3\t0\t9\t0.0700\t0.200\t1.50"]
    assert page.locator("main img, main script").count() == 0
    with (folder / "lineage.jsonl").open("a") as file:
        file.write('{"update": 12, "se')
    section.locator("text=1 line of lineage.jsonl cannot be read").wait_for()
    (folder / "lineage.jsonl").unlink()
    section.wait_for(state="hidden")
    assert page.locator("#members").is_visible()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_large_lineage_fits_the_screen_and_is_drawn_at_once(runs, dashboard, open_page, width, scheme):
    members = 64
    rows = [{"update": e, "seed": k, "parent": (k + e) % members if e and (k + e) % 5 == 0 else k, "score": 1.0 * k,
             "tuned": {"learning_rate": 1e-3}} for e in range(300) for k in range(members)]  # fmt: skip
    write_population(runs / "pop", rows)
    page = open_page(f"{dashboard(runs, '--port', 0).address}#run=pop", width, scheme)
    page.wait_for_selector("#lineage svg")
    assert "Only the newest exchanges are shown." in page.locator("#lineage").inner_text()
    assert page.locator("#lineage .copy").count() > 1000
    assert without_side_scroll(page)
    picture, card = (page.locator(f"#lineage {which}").bounding_box() for which in ("svg", ".lineage"))
    assert picture["width"] <= card["width"]
    line = page.locator("#lineage .life").first
    colours = [line.evaluate("node => getComputedStyle(node).stroke")]
    seconds = page.evaluate(
        "() => { const began = performance.now(); document.getElementById('theme').click();"
        " document.body.getBoundingClientRect(); return (performance.now() - began) / 1000; }"
    )
    colours.append(line.evaluate("node => getComputedStyle(node).stroke"))
    assert colours[0] != colours[1]
    assert seconds < 2


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A run with `--dash`: its page's address, and its process."""
    arguments = ["impala", "CartPole-v1", "--actors", "2", "--steps", "1e8", "--run-dir", str(tmp_path / "live")]
    command = [sys.executable, "-m", "tessera", "train", *arguments, "--dash", "--dash-port", "0"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    found = next(word for line in lines for word in line.split() if word.startswith("http://"))
    yield found, process
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=60)
    finally:
        process.kill()


def test_a_killed_actor_turns_red_and_then_works_again(live, open_page, tmp_path, until):
    address, process = live
    page = open_page(address)
    page.wait_for_selector(".plan .dot.working", timeout=60_000)
    page.wait_for_function(
        "() => document.querySelector('.tile:nth-child(5) .figure').textContent.replace(',', '') > 0", timeout=60_000
    )
    status_file = tmp_path / "live" / "live" / "status.json"
    replica = json.loads(status_file.read_text())["replicas"][1]
    assert replica["title"] == f"{ACTORS}/1"
    is_red = "() => document.querySelectorAll('.plan .dot')[1].matches('.dead')"
    os.kill(replica["process"], signal.SIGKILL)
    page.wait_for_function(is_red)
    page.wait_for_selector("#events .mark.death")
    page.wait_for_function(
        "() => document.querySelectorAll('.plan .dot')[1].matches('.working, .waiting')", timeout=60_000
    )
    assert json.loads(status_file.read_text())["replicas"][1]["restarts"] == 1
    assert process.poll() is None
