"""Where experience waits until `grad` draws it."""

from tessera.stores.base import Experience, Sample, Store
from tessera.stores.frames import FrameReplay
from tessera.stores.queue import Queue
from tessera.stores.replay import Replay, ReplayBuffer

__all__ = ["Experience", "FrameReplay", "Queue", "Replay", "ReplayBuffer", "Sample", "Store"]
