"""Where experience waits until `grad` draws it."""

from tessera.stores.base import Experience, Sample, Store
from tessera.stores.host import HostReplay
from tessera.stores.queue import Queue
from tessera.stores.replay import Replay, ReplayBuffer

__all__ = ["Experience", "HostReplay", "Queue", "Replay", "ReplayBuffer", "Sample", "Store"]
