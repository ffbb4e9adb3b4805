"""Actors fill replay stores of their own fragment; one learner draws from all of them."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(actors: int = 2, stores: int = 1, mode: str = "sync", lag: int | None = None, ahead: int = 2) -> Policy:
    """Experience, samples, priorities and params all cross.

    Under async actors never wait for the learner's params, and stores draw up to `ahead` samples before the priorities
    of the first are back.
    """
    loose = {
        "experience": Cut("async"),
        "samples": Cut("async", capacity=max(1, ahead)),
        "priorities": Cut(lag=ahead),
        "params": Cut("async", lag),
    }
    return Policy(
        name="distributed_replay",
        fragments=(Fragment("env act", replicas=actors), Fragment("store", replicas=stores), Fragment("grad apply")),
        cuts=loose if mode == "async" else ({} if mode == "sync" else {"experience": Cut(mode)}),
        summary="actors, replay stores and a learner, each in processes of their own",
        mirrors="Ape-X",
    )
