"""Environments, forward passes and optimisation in fragments of their own."""

from tessera.graph.policy import Fragment, Policy


def policy(workers: int = 2, inference: int = 1, learners: int = 1) -> Policy:
    """`workers` step environments, `inference` replicas act, `learners` learn with an all-reduce of gradients."""
    return Policy(
        name="split_inference",
        fragments=(
            Fragment("env", replicas=workers),
            Fragment("act", replicas=inference),
            Fragment("store grad apply", replicas=learners),
        ),
        summary="rollout workers, forward-pass workers and optimisers",
        mirrors="OpenAI Five",
    )
