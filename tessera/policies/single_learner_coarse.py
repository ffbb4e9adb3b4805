"""Actors play whole unrolls with their own copy of the params; one learner does the rest."""

from tessera.graph.policy import Fragment, Policy


def policy(actors: int = 2) -> Policy:
    """Experience is gathered once per unroll, params are sent to all `actors` once per update."""
    return Policy(
        name="single_learner_coarse",
        fragments=(Fragment("env act", replicas=actors), Fragment("store grad apply")),
        summary="actors play whole unrolls, one learner updates; synchronous",
        mirrors="MSRL DP-SingleLearnerCoarse, A2C, Acme",
    )
