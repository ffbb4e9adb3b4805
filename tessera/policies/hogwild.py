"""Every replica holds all operators; params lie in one shared memory, which all read and add to without locks."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(workers: int = 2, carries: str = "params") -> Policy:
    """Updates are added in place, element by element; `carries` state shares the optimiser's moments too, as a mean."""
    return Policy(
        name="hogwild",
        fragments=(Fragment("env act store grad apply", replicas=workers),),
        cuts={"gradients": Cut(route="local"), "updates": Cut(route="shared", carries=carries)},
        summary="lock-free updates of params in one shared memory",
        mirrors="Hogwild, A3C on one machine",
    )
