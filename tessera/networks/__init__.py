"""Networks (Flax): torsos that read observations, and heads that policies, values and action values are read off."""

from tessera.networks.conv import Conv, ConvTorso, ResidualTorso
from tessera.networks.heads import ActorCritic, QNetwork
from tessera.networks.mlp import ACTIVATIONS, MLP
from tessera.networks.recurrent import CORES, Carry, Core, empty_carry
from tessera.networks.team import TeamActorCritic
from tessera.networks.torsos import TORSOS, torso, torso_name

__all__ = [
    "ACTIVATIONS",
    "CORES",
    "MLP",
    "TORSOS",
    "ActorCritic",
    "Carry",
    "Conv",
    "ConvTorso",
    "Core",
    "QNetwork",
    "ResidualTorso",
    "TeamActorCritic",
    "empty_carry",
    "torso",
    "torso_name",
]
