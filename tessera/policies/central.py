"""Workers play and compute gradients; a parameter server, in one or several shards, applies them."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(workers: int = 2, shards: int = 1, mode: str = "sync", lag: int | None = None) -> Policy:
    """Gradients are pushed and params pulled at every minibatch.

    Under sync the server waits for all `workers` and applies their mean; under async each gradient by itself, unless it
    is more than `lag` updates old.
    """
    cuts = {"gradients": Cut("async"), "params": Cut("async", lag)} if mode == "async" else {}
    return Policy(
        name="central",
        fragments=(Fragment("env act store grad", replicas=workers), Fragment("apply", replicas=shards)),
        cuts=cuts or ({} if mode == "sync" else {"gradients": Cut(mode)}),
        summary="workers push gradients to a parameter server, and pull params",
        mirrors="MSRL DP-Central, A3C, DistBelief Downpour",
    )
