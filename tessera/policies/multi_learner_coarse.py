"""Actors play whole unrolls; several learners share the work and average their gradients."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(actors: int = 2, learners: int = 2, mode: str = "sync", lag: int | None = None, take: int = 0) -> Policy:
    """Each learner takes the unrolls of its own actors; gradients are all-reduced, so all have the same params.

    `mode` is sync or async (learners take experience as it arrives, actors the newest params); `lag` is by how many
    updates actors lag behind, or under async may lag at most; with `take` an async update learns from so many groups,
    whichever come first.
    """
    cuts = {"params": Cut(lag=lag)} if lag is not None else {}
    if mode != "sync" or take:
        cuts = {"experience": Cut(mode, take=take), "params": Cut(mode, lag)}
    return Policy(
        name="multi_learner_coarse",
        fragments=(Fragment("env act", replicas=actors), Fragment("store grad apply", replicas=learners)),
        cuts=cuts,
        summary="actors play whole unrolls, several learners update together",
        mirrors="IMPALA with several learners, Sebulba",
    )
