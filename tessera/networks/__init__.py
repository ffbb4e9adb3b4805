"""Networks (Flax): torsos that read observations, cores that remember, heads for distributions and values."""

from tessera.networks.conv import Conv, ConvTorso, ResidualTorso
from tessera.networks.deterministic import (
    ActionCritic,
    Chooser,
    DeterministicActor,
    SquashedGaussianActor,
    action_range,
    unscaled_action,
)
from tessera.networks.heads import ActorCritic, QNetwork, RecurrentQNetwork
from tessera.networks.mlp import ACTIVATIONS, MLP, output_dtype
from tessera.networks.own import OwnActorCritic, as_module, check_network, check_torso, is_own
from tessera.networks.recurrent import CORES, Carry, Core, empty_carry
from tessera.networks.team import TeamActorCritic
from tessera.networks.torsos import TORSOS, torso, torso_name

__all__ = [
    "ACTIVATIONS",
    "CORES",
    "MLP",
    "TORSOS",
    "ActionCritic",
    "ActorCritic",
    "Carry",
    "Chooser",
    "Conv",
    "ConvTorso",
    "Core",
    "DeterministicActor",
    "OwnActorCritic",
    "QNetwork",
    "RecurrentQNetwork",
    "ResidualTorso",
    "SquashedGaussianActor",
    "TeamActorCritic",
    "action_range",
    "as_module",
    "check_network",
    "check_torso",
    "empty_carry",
    "is_own",
    "output_dtype",
    "torso",
    "torso_name",
    "unscaled_action",
]
