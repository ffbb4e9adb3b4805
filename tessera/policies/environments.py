"""Environments apart from agents, for environments that several agents share."""

from tessera.graph.policy import EACH_AGENT, Fragment, Policy


def policy(workers: int = 2, agents: int = EACH_AGENT) -> Policy:
    """`workers` replicas step environments; each of `agents` replicas acts and learns.

    Where agents have params of their own, the default is one replica for each agent.
    """
    return Policy(
        name="environments",
        fragments=(Fragment("env", workers), Fragment("act store grad apply", agents, by="agents")),
        summary="environment workers on one side, agents on the other",
        mirrors="MSRL DP-Environments",
    )
