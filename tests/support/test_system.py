"""Facts about this machine and this process."""

from __future__ import annotations

import subprocess
import sys
import time

from tessera.support.system import process_start


def test_a_process_knows_when_it_began_and_not_only_when_it_asked():
    code = "import time; time.sleep(0.5); from tessera.support.system import process_start; print(process_start())"
    before = time.time()
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert abs(float(printed) - before) < 0.4
    assert process_start() < before
