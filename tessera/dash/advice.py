"""Advice that takes longer than an answer may: a command is asked once for each plan of a run, beside everything."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from tessera.support.cache import cache_folder

PATIENCE = 120.0
"""Seconds that the command may take."""
NICENESS = 19
LONGEST = 500
MOST = 1000
"""Sentences that are kept."""


class Advice:
    """Sentences of a command that is given a run's folder. Nothing is known until it has ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._known: dict[tuple[str, int], str] = {}
        self._one_at_a_time = threading.Lock()

    def about(self, folder: Path, algorithm: str, plan: int) -> str:
        """What is known so far; `plan` tells plans of one run apart. Where there are no profiles nothing is asked."""
        key = (str(folder), plan)
        if not self._command or not any_profile(algorithm) or len(self._known) >= MOST:
            return ""
        if key not in self._known:
            self._known[key] = ""
            threading.Thread(target=self._ask, args=(key,), daemon=True).start()
        return self._known[key]

    def _ask(self, key: tuple[str, int]) -> None:
        command = ("nice", "-n", str(NICENESS), *self._command, key[0])
        # a run's accelerators are its own
        alone = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with self._one_at_a_time:
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=alone, check=False)
            except (OSError, subprocess.TimeoutExpired):
                return
        self._known[key] = done.stdout.strip()[:LONGEST]


def any_profile(algorithm: str) -> bool:
    """Whether a profile of an algorithm is kept on this machine, of whatever environment."""
    if os.environ.get("TESSERA_CACHE") == "":
        return False
    try:
        return any(name.startswith(f"{algorithm}-") for name in os.listdir(cache_folder() / "profiles"))
    except OSError:
        return False
