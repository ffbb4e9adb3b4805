"""Networks (Flax): torsos that read observations, and heads that policies, values and action values are read off."""

from tessera.networks.conv import Conv, ConvTorso
from tessera.networks.heads import ActorCritic, QNetwork
from tessera.networks.mlp import ACTIVATIONS, MLP
from tessera.networks.torsos import TORSOS, torso, torso_name

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "TORSOS",
    "ActorCritic",
    "Conv",
    "ConvTorso",
    "QNetwork",
    "torso",
    "torso_name",
]
