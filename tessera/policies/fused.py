"""Everything in one fragment: one compiled program, data-parallel over all devices of this machine."""

from tessera.graph.policy import ALL_DEVICES, Fragment, Policy


def policy(devices: int = ALL_DEVICES, model: int = 1) -> Policy:
    """All five operators together; gradients are averaged over devices inside the program."""
    return Policy(
        name="fused",
        fragments=(Fragment("env act store grad apply", devices=devices, model=model),),
        summary="one program on all local devices; nothing is cut",
        mirrors="MSRL DP-GPUOnly, Podracer Anakin, WarpDrive",
    )
