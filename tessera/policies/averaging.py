"""Every replica trains alone; every few updates all of them average their params."""

from tessera.graph.policy import Cut, Fragment, Policy


def policy(workers: int = 2, every: int = 1, carries: str = "state") -> Policy:
    """Params are averaged every `every` updates; `carries` state averages the optimiser's moments too."""
    return Policy(
        name="averaging",
        fragments=(Fragment("env act store grad apply", replicas=workers),),
        cuts={"gradients": Cut(route="local"), "updates": Cut(route="mean", every=every, carries=carries)},
        summary="independent replicas whose params are averaged every few updates",
        mirrors="parameter averaging",
    )
