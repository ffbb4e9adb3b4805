"""Every replica gathers all experience and computes the same update: no params or gradients move."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(workers: int = 2) -> Policy:
    """Each replica plays its own environments and learns from all."""
    return Policy(
        name="mirrored",
        fragments=(Fragment("env act store grad apply", replicas=workers),),
        cuts={"experience": Cut(route="gather")},
        summary="every replica learns the same from all experience",
        mirrors="evolution strategies",
    )
