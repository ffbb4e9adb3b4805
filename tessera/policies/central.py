"""Workers play and compute gradients; a parameter server, in one or several shards, applies them."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(
    workers: int = 2,
    shards: int = 1,
    mode: str = "sync",
    lag: int | None = None,
    push: int = 1,
    pull: int = 1,
    model: int = 1,
) -> Policy:
    """Gradients are pushed and params pulled at every minibatch.

    Under sync the server waits for all `workers` and applies the mean of their gradients. Under async it applies each
    gradient alone, unless it is more than `lag` updates old; a worker sends the mean of every `push` gradients, and the
    server sends params after every `pull` of them (DistBelief). Each worker may cut its wide layers over `model`
    devices.
    """
    bound = lag if mode == "async" else None
    return Policy(
        name="central",
        fragments=(Fragment("env act store grad", replicas=workers, model=model), Fragment("apply", replicas=shards)),
        cuts={"gradients": Cut(mode, every=push), "params": Cut(mode, bound, every=pull)},
        summary="workers push gradients to a parameter server, and pull params",
        mirrors="MSRL DP-Central, A3C, DistBelief Downpour",
    )
