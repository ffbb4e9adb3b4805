"""Seconds from process start to the first finished update, with a cold and with a warm compilation cache.

python benchmarks/startup.py
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def start(cache: str, folder: str) -> float:
    """Train for two updates in a new process; its `startup_seconds`."""
    command = [sys.executable, "-m", "tessera", "train", "ppo", "gymnax:CartPole-v1", "--steps", "4096", "--quiet"]
    command += ["--eval-episodes", "1", "--run-dir", folder]
    subprocess.run(command, env={**os.environ, "TESSERA_CACHE": cache, "JAX_PLATFORMS": "cpu"}, check=True)
    return json.loads((Path(folder) / "summary.json").read_text())["startup_seconds"]


def import_seconds() -> float:
    """Seconds that `import tessera` takes in a new process, its interpreter's start left out."""
    code = "import time; t = time.perf_counter(); import tessera; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    rows = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            cold = start(f"{folder}/cache", f"{folder}/cold")
            warm = start(f"{folder}/cache", f"{folder}/warm")
            rows.append((cold, warm, import_seconds()))
    cold, warm, imported = (sorted(column)[len(rows) // 2] for column in zip(*rows, strict=True))
    print(json.dumps({"cold_seconds": cold, "warm_seconds": warm, "import_seconds": round(imported, 4)}))


if __name__ == "__main__":
    main()
