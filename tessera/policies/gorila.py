"""Actors, replays, learners and a sharded parameter server, all at their own pace."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(
    actors: int = 2,
    stores: int = 1,
    learners: int = 1,
    shards: int = 2,
    bundled: bool = False,
    mode: str = "async",
    lag: int | None = None,
) -> Policy:
    """Split: every role is a fragment of its own. Bundled: an actor, its replay and its learner share one."""
    split = (
        Fragment("env act", replicas=actors),
        Fragment("store", replicas=stores),
        Fragment("grad", replicas=learners),
    )
    together = (Fragment("env act store grad", replicas=actors),)
    loose = {"gradients": Cut("async"), "params": Cut("async", lag)}
    if not bundled:
        loose |= {"experience": Cut("async"), "samples": Cut("async"), "priorities": Cut(lag=0 if lag == 0 else 1)}
    return Policy(
        name="gorila",
        fragments=(*(together if bundled else split), Fragment("apply", replicas=shards)),
        cuts=loose if mode == "async" else ({} if mode == "sync" else {"gradients": Cut(mode)}),
        summary="actors, replays and learners around a sharded server, asynchronous; split or bundled",
        mirrors="Gorila",
    )
