"""Environments only step; one learner chooses every action, so no params ever move."""

from tessera.graph.policy import Fragment, Policy


def policy(actors: int = 2) -> Policy:
    """`actors` replicas step environments; timesteps and actions cross at every step."""
    return Policy(
        name="single_learner_fine",
        fragments=(Fragment("env", replicas=actors), Fragment("act store grad apply")),
        summary="environment servers, and one learner that acts for all of them",
        mirrors="MSRL DP-SingleLearnerFine, SEED RL",
    )
