"""Environments, forward passes and optimisation in fragments of their own."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(workers: int = 2, inference: int = 1, learners: int = 1, wait: float | None = None) -> Policy:
    """`workers` step environments, `inference` replicas act, `learners` learn with an all-reduce of gradients.

    With `wait`, actions are chosen for the environments that are ready once the first has waited `wait` seconds.
    """
    return Policy(
        name="split_inference",
        fragments=(
            Fragment("env", replicas=workers),
            Fragment("act", replicas=inference),
            Fragment("store grad apply", replicas=learners),
        ),
        cuts={"timesteps": Cut(wait=wait)},
        summary="rollout workers, forward-pass workers and optimisers",
        mirrors="OpenAI Five",
    )
