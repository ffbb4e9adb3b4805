"""Environments only step; one learner chooses every action, so no params ever move."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(actors: int = 2, wait: float | None = None) -> Policy:
    """`actors` replicas step environments; timesteps and actions cross at every step.

    With `wait`, actions are chosen for the environments that are ready once the first has waited `wait` seconds.
    """
    return Policy(
        name="single_learner_fine",
        fragments=(Fragment("env", replicas=actors), Fragment("act store grad apply")),
        cuts={"timesteps": Cut(wait=wait)},
        summary="environment servers, and one learner that acts for all of them",
        mirrors="MSRL DP-SingleLearnerFine, SEED RL",
    )
