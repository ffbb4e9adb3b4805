"""Facts about this machine and this process."""

from __future__ import annotations

import subprocess
import sys
import time

CODE = """
import time
time.sleep(0.3)
from tessera.support.machine import process_start
print(process_start(), time.time())
"""


def test_a_process_knows_when_it_began_however_late_it_asks():
    before = time.time()
    printed = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    began, asked = map(float, printed.split())
    assert before - 0.1 < began <= asked - 0.3 + 0.1  # the kernel counts in hundredths of a second
