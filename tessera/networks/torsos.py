"""The choice of the network that reads observations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tessera.envs.base import Spec
from tessera.errors import TesseraError, unknown_name
from tessera.networks.conv import NATURE, RESNET, SMALL, ConvTorso, ResidualTorso
from tessera.networks.mlp import HIDDEN_GAIN, MLP
from tessera.networks.own import OwnTorso, is_own

TORSOS = ("mlp", "nature", "small", "resnet")

_LEAST_SIDE = {"nature": 36, "small": 3, "resnet": 5}
_WIDTHS = {"mlp": (64, 64), "nature": (512,), "small": (128,), "resnet": (256,)}


def channels_first(spec: Spec) -> bool:
    """Whether observations are stacked frames [channels, height, width]; in most images the channels are last."""
    return not spec.is_tree and spec.array.is_pixels and spec.array.shape[0] < min(spec.array.shape[1:])


def torso_name(spec: Spec, name: Any = "auto") -> str:
    """Resolve "auto" by the shape of an observation; refuse a network that cannot read such observations.

    In a tree the images decide, and the network reads each of them; without images it is "mlp".
    """
    if is_own(name):  # what depends on the kind of a torso is as for ours
        return "small" if spec.images else "mlp"
    if name not in ("auto", *TORSOS):
        raise unknown_name("torso", name, ("auto", *TORSOS))
    if not spec.is_tree:
        return _name_for(spec, name)
    names = [_name_for(part, name) for part in _parts(spec) if part.images]
    return names[0] if names else "mlp"


def _name_for(spec: Spec, name: str) -> str:
    shape = spec.array.shape
    side = min(shape[1:] if channels_first(spec) else shape[:2]) if len(shape) == 3 else 0
    if name == "auto":
        if side >= _LEAST_SIDE["nature"]:
            return "nature"
        return "small" if side >= _LEAST_SIDE["small"] else "mlp"
    if side < _LEAST_SIDE.get(name, 0):
        raise TesseraError(
            f"torso {name!r} cannot read observations of shape {shape}: it needs images [height, width, channels] "
            f"with sides of at least {_LEAST_SIDE[name]}; choose torso 'auto' or 'mlp'"
        )
    return name


def _parts(spec: Spec) -> list[Spec]:
    """A spec for each array of a tree, as if it were all that is observed."""
    return [replace(spec, observation_shape=x.shape, observation_dtype=x.dtype) for x in spec.parts.values()]


def torso_widths(spec: Spec, name: Any, widths: tuple[int, ...] | None) -> tuple[int, ...]:
    """Widths of the fully connected layers: those given, or else the torso's usual ones."""
    return tuple(_WIDTHS[torso_name(spec, name)] if widths is None else widths)


def torso(
    spec: Spec,
    name: Any = "auto",
    widths: tuple[int, ...] | None = None,
    activation: str | None = None,
    gain: float | None = HIDDEN_GAIN,
    normalised: bool = False,
) -> nn.Module:
    """Make the network that turns observations [..., *observation_shape] into features [..., widths[-1]].

    Of a tree each image has convolutions of its own; what they give and the other arrays, flattened, are joined before
    the fully connected layers.

    Args:
        spec: the shape of observations, and the precision to compute in.
        name: "mlp" (flattens), "nature" (for images such as 84x84), "small" (for images such as 10x10), "resnet"
            (IMPALA's deep network) or "auto", by the observations' shape: one of the first three. Or a user's own: it
            makes the features alone, and the rest is not read.
        widths: widths of the fully connected layers; None: (64, 64) for mlp, (512,) for nature, (128,) for small,
            (256,) for resnet.
        activation: one of `ACTIVATIONS`; None: tanh for mlp, relu for images.
        gain: gain of the fully connected layers; see `MLP`.
        normalised: normalise layers before their activations.
    """
    if is_own(name):
        return OwnTorso(name)
    if spec.is_tree:
        widths = torso_widths(spec, name, widths)
        return JoinedTorso(spec, name, widths, activation, gain, normalised)
    name = torso_name(spec, name)
    widths = torso_widths(spec, name, widths)
    if name == "mlp":
        axes = len(spec.observation_shape)
        return MLP(widths, activation or "tanh", spec.precision, gain, axes, normalised=normalised)
    rest = (widths, activation or "relu", spec.precision, gain, channels_first(spec), normalised)
    if name == "resnet":
        return ResidualTorso(RESNET, *rest)
    return ConvTorso(NATURE if name == "nature" else SMALL, *rest)


class JoinedTorso(nn.Module):
    """Reads a tree of arrays, each by a network of its own; see `torso`."""

    spec: Spec
    name_of_torso: str
    widths: tuple[int, ...]
    activation: str | None
    gain: float | None
    normalised: bool

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        """Evaluate the network."""
        features = []
        for part, x in zip(_parts(self.spec), jax.tree.leaves(observation), strict=True):
            name = self.name_of_torso if part.images else "mlp"
            features.append(torso(part, name, (), self.activation, self.gain, self.normalised)(x))
        default = "tanh" if torso_name(self.spec, self.name_of_torso) == "mlp" else "relu"
        rest = (self.activation or default, self.spec.precision, self.gain)
        return MLP(self.widths, *rest, normalised=self.normalised)(jnp.concatenate(features, axis=-1))
