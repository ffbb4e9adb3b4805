"""No server: every replica sends its gradients, compressed, to all others, and applies those that arrive."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(workers: int = 2, threshold: float = 0.0, lag: int | None = 1) -> Policy:
    """No replica is ahead of another by more than `lag` updates; lag 0 is lock-step, and equals an all-reduce.

    Memory is reserved for as many gradients of each replica as `lag` lets be under way, 64 at the most.

    With a `threshold`, only elements whose accumulated gradient exceeds it are sent, as plus or minus the threshold.
    """
    return Policy(
        name="decentralised",
        fragments=(Fragment("env act store grad apply", replicas=workers),),
        cuts={
            "gradients": Cut("async", codec="threshold" if threshold else "", threshold=threshold, capacity=64),
            "params": Cut("async", lag),
        },
        summary="peers exchange compressed gradients, without a server",
        mirrors="decentralised asynchronous SGD (Strom 2015)",
    )
