"""All operators in every replica; gradients are averaged over all replicas, so that their params stay the same."""

from tessera.graph.policy import Fragment, Policy


def policy(learners: int = 2) -> Policy:
    """Data parallel over `learners` replicas: an all-reduce of gradients for each minibatch."""
    return Policy(
        name="multi_learner",
        fragments=(Fragment("env act store grad apply", replicas=learners),),
        summary="data parallel: every replica does everything, gradients are averaged",
        mirrors="MSRL DP-MultiLearner, DD-PPO",
    )
