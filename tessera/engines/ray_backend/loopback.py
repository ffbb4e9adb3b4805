"""`python -m tessera.engines.ray_backend.loopback …` is Ray's command line, for nodes that only this machine can reach.

Ray takes 127.0.0.1 for any address of the machine and listens on all of them. It stays on loopback only if it believes
that the machine has no other address, so this module makes it believe that.
"""

from __future__ import annotations

LOOPBACK = "127.0.0.1"
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment variables with the same effect in a process that joins such nodes; set before Ray is imported."""


def main() -> None:
    """Run Ray's command line."""
    from ray._private import services
    from ray.scripts import scripts

    services.get_node_ip_address = lambda address=None: LOOPBACK
    scripts.main()


if __name__ == "__main__":
    main()
