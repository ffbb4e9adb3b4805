"""`python -m tessera.engines.ray_backend.loopback …` is Ray's command line, for nodes that only this machine can reach.

Ray takes 127.0.0.1 for any address of the machine and listens on all of them. It keeps to loopback only where it
believes that a machine has no other address, so it is told that here.
"""

from __future__ import annotations

LOOPBACK = "127.0.0.1"
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""What says the same to Ray in a process that joins such nodes, before it is imported."""


def main() -> None:
    """Run Ray's command line."""
    from ray._private import services
    from ray.scripts import scripts

    services.get_node_ip_address = lambda address=None: LOOPBACK
    scripts.main()


if __name__ == "__main__":
    main()
