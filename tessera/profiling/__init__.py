"""What an algorithm costs in an environment on this machine, measured."""

from collections.abc import Callable
from contextlib import AbstractContextManager

Progress = Callable[[str, float], None]
"""Called with what is measured, and which share of the time has passed."""
Bar = Callable[[], AbstractContextManager[Progress]]
"""Opens a progress bar."""
