"""Environments apart from agents: the shape for worlds that several agents share."""

from tessera.graph.policy import Fragment, Policy


def policy(workers: int = 2, agents: int = 1) -> Policy:
    """`workers` replicas step environments; each of `agents` replicas acts and learns."""
    return Policy(
        name="environments",
        fragments=(Fragment("env", replicas=workers), Fragment("act store grad apply", replicas=agents)),
        summary="environment workers on one side, agents on the other",
        mirrors="MSRL DP-Environments",
    )
