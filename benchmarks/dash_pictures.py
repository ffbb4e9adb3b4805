"""Pictures of the dashboard for the docs: a live run on a desktop and on a phone, and three runs over each other.

    python benchmarks/dash_pictures.py docs/pictures

Trains for about a minute; needs the extra `dash`, playwright and a Chromium.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

TESSERA = [sys.executable, "-m", "tessera"]
ACTORS = ["--actors", "4", "--envs", "32"]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def train(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [*TESSERA, "train", *arguments, "--run-dir", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


@contextmanager
def until_end(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def wait_for(look: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := look():
                return found
        except (OSError, ValueError):
            pass
        time.sleep(0.1)
    raise SystemExit("what was waited for did not come")


def actor(run: Path) -> dict[str, Any]:
    """What one of the actors does."""
    return json.loads((run / "live" / "status.json").read_text())["replicas"][1]


def kill(run: Path) -> None:
    os.kill(actor(run)["process"], signal.SIGKILL)


def shoot(
    browser: Any, address: str, file: Path, size: tuple[int, int], scheme: str, killed: Path | None = None
) -> None:
    """A picture of a page; with `killed`, of the moment in which an actor of this run is seen to be dead."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("figure canvas")
    page.wait_for_timeout(2500)  # the second look at the timeline, and fonts
    if killed is not None:
        kill(killed)
        page.wait_for_selector(".plan .dot.dead")
        page.wait_for_selector(".hints >> text=is dead")
    page.screenshot(path=file)
    context.close()
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        for seed in ("1", "2"):
            train(runs / f"ppo_{seed}", "ppo", "gymnax:CartPole-v1", "--steps", "300000", "--seed", seed).wait()
        train(runs / "a2c", "a2c", "gymnax:CartPole-v1", "--steps", "300000").wait()
        live = runs / "impala"
        running = train(live, "impala", "CartPole-v1", "--steps", "1e7", "--evaluate-every", "400", *ACTORS)
        served = subprocess.Popen([*TESSERA, "dash", str(runs), "--port", "0"], stdout=subprocess.PIPE, text=True)
        with until_end(running), until_end(served), sync_playwright() as playwright:
            assert served.stdout is not None
            address = next(word for word in served.stdout.readline().split() if word.startswith("http"))
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            wait_for(lambda: (live / "metrics.jsonl").read_text().count("\n") > 40)
            kill(live)
            wait_for(lambda: actor(live)["restarts"] and actor(live)["state"] in ("working", "waiting"))
            time.sleep(6)
            shoot(browser, f"{address}#run=impala", out / "dash_desktop.png", (1280, 1340), "light")
            shoot(browser, f"{address}#run=impala", out / "dash_phone.png", (390, 1300), "light")
            compared = "&".join(f"compare={name}" for name in ("ppo_1", "ppo_2", "a2c"))
            shoot(browser, f"{address}#run=impala", out / "dash_dark.png", (1280, 1100), "dark", live)
            shoot(browser, f"{address}#{compared}", out / "dash_compare.png", (1280, 1100), "light")
            browser.close()


if __name__ == "__main__":
    main()
