"""Actors fill replay stores, which are a fragment of their own; one learner draws from all of them."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(
    actors: int = 2,
    stores: int = 1,
    mode: str = "sync",
    lag: int | None = None,
    ahead: int = 2,
    publish: int = 1,
    take: int = 0,
) -> Policy:
    """Experience, samples, priorities and params all cross.

    Under async, actors never wait for params, which the learner sends every `publish` updates, and stores draw up to
    `ahead` samples before the priorities of the first return; with `take` an update adds so many groups, whichever
    come first.
    """
    loose = {
        "experience": Cut("async", take=take),
        "samples": Cut("async", capacity=max(1, ahead)),
        "priorities": Cut(lag=ahead),
        "params": Cut("async", lag, every=publish),
    }
    tight = {"params": Cut(every=publish)} if (mode, take) == ("sync", 0) else {"experience": Cut(mode, take=take)}
    return Policy(
        name="distributed_replay",
        fragments=(Fragment("env act", replicas=actors), Fragment("store", replicas=stores), Fragment("grad apply")),
        cuts=loose if mode == "async" else tight,
        summary="actors, replay stores and a learner, each in processes of their own",
        mirrors="Ape-X",
    )
