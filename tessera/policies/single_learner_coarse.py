"""Actors play whole unrolls with their own copy of the params; one learner does the rest."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(actors: int = 2, mode: str = "sync", first: int = 0, lag: int | None = None, take: int = 0) -> Policy:
    """Experience is gathered once per unroll, params are sent to all `actors` once per update.

    `mode` is sync, async (the learner takes experience as it arrives, actors the newest params) or first (an update
    waits for the first `first` actors only); `lag` is by how many updates actors lag behind, or under async may lag at
    most; with `take` an async update learns from so many groups, whichever come first.
    """
    cuts = {"params": Cut(lag=lag)} if lag is not None else {}
    if mode == "async":
        cuts = {"experience": Cut("async", take=take), "params": Cut("async", lag)}
    elif mode == "first":
        waited = first or max(1, actors - 1)
        cuts = {"experience": Cut("first", first=waited), "params": Cut("async", lag or 0)}
    elif mode != "sync" or take:
        cuts = {"experience": Cut(mode, take=take)}  # Policy refuses it, and says why
    return Policy(
        name="single_learner_coarse",
        fragments=(Fragment("env act", replicas=actors), Fragment("store grad apply")),
        cuts=cuts,
        summary="actors play whole unrolls, one learner updates",
        mirrors="MSRL DP-SingleLearnerCoarse, Acme, A2C (sync), IMPALA (async), Sebulba",
    )
