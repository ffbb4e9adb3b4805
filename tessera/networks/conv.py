"""Convolutional networks for images [..., height, width, channels]."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tessera.networks.mlp import HIDDEN_GAIN, MLP, activation_named, dtypes, layer_norm


def convolve_directly(x: jax.Array, kernel: jax.Array, stride: int, padding: int = 0) -> jax.Array:
    """Convolve by XLA's own operation: [B, H, W, C], [k, k, C, F] -> [B, H', W', F]; zeros on each side of an image."""
    sides, order = ((padding, padding), (padding, padding)), ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x.astype(kernel.dtype), kernel, (stride, stride), sides, dimension_numbers=order
    )


def convolve_by_patches(x: jax.Array, kernel: jax.Array, stride: int, padding: int = 0) -> jax.Array:
    """Compute the same as `convolve_directly` by one matrix product over the patches under the kernel.

    Where the stride divides the kernel, blocks of stride x stride pixels become channels first: then a few wide slices
    make the patches instead of many narrow ones.
    """
    k, channels, features = kernel.shape[0], kernel.shape[2], kernel.shape[3]
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))) if padding else x
    height, width = ((side - k) // stride + 1 for side in x.shape[1:3])
    if stride > 1 and k % stride == 0:
        k //= stride
        rows, columns = height + k - 1, width + k - 1
        x = x[:, : rows * stride, : columns * stride]
        x = x.reshape(-1, rows, stride, columns, stride, channels).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(-1, rows, columns, stride * stride * channels)
        kernel = kernel.reshape(k, stride, k, stride, channels, features).transpose(0, 2, 1, 3, 4, 5)
        stride = 1
    patches = [
        x[:, i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride]
        for i in range(k)
        for j in range(k)
    ]
    return jnp.concatenate(patches, axis=-1).astype(kernel.dtype) @ kernel.reshape(-1, features)


Convolution = Callable[[jax.Array, jax.Array, int, int], jax.Array]


def _directly_or_by_patches(made_of: Callable[[Convolution], Callable[..., jax.Array]]) -> Callable[..., jax.Array]:
    """A function of images, a kernel and more, made of `convolve_directly`; of patches where kernels are mapped over.

    XLA maps a convolution over kernels, as a population does, to a grouped one: for 16 small networks on an H200, and
    for 4 on a CPU, that takes more than twice as long.
    """
    compute = jax.custom_batching.custom_vmap(made_of(convolve_directly))

    @compute.def_vmap
    def mapped(size: int, is_mapped: list[bool], x: jax.Array, kernel: jax.Array, *more: jax.Array) -> Any:
        x_mapped, kernel_mapped, *_ = is_mapped
        if x_mapped and not kernel_mapped and not more:  # more images: the kernel may still be mapped over outside
            y = compute(x.reshape(-1, *x.shape[2:]), kernel)
            return y.reshape(size, -1, *y.shape[1:]), True
        form = made_of(convolve_by_patches if kernel_mapped else convolve_directly)
        axes = tuple(0 if here else None for here in is_mapped)
        return jax.vmap(form, axes, axis_size=size)(x, kernel, *more), True

    return compute


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve(x: jax.Array, kernel: jax.Array, stride: int, padding: int = 0) -> jax.Array:
    """Convolve, with zeros on each side: [B, H, W, C] numbers or uint8, [k, k, C, F] -> [B, H', W', F].

    On a CPU the kernel's gradient is computed by patches, because XLA's own runs on about one core. For the forward
    pass and the input's gradient XLA's own is faster. Only reverse-mode differentiation is possible.
    """
    return _directly_or_by_patches(lambda by: lambda x, kernel: by(x, kernel, stride, padding))(x, kernel)


def _forward(
    x: jax.Array, kernel: jax.Array, stride: int, padding: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return convolve(x, kernel, stride, padding), (x, kernel)


def _backward(
    stride: int, padding: int, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array | None, jax.Array]:
    x, kernel = saved

    def kernel_gradient(by: Convolution) -> Callable[..., jax.Array]:
        return lambda x, kernel, dy: jax.vjp(lambda k: by(x, k, stride, padding), kernel)[1](dy)[0]

    def input_gradient(by: Convolution) -> Callable[..., jax.Array]:
        return lambda x, kernel, dy: jax.vjp(lambda x: by(x, kernel, stride, padding), x)[1](dy)[0]

    d_kernel = jax.lax.platform_dependent(
        x, kernel, dy, cpu=kernel_gradient(convolve_by_patches), default=_directly_or_by_patches(kernel_gradient)
    )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return None, d_kernel
    return _directly_or_by_patches(input_gradient)(x, kernel, dy), d_kernel


convolve.defvjp(_forward, _backward)


class Conv(nn.Module):
    """One square convolution: [B, H, W, C] -> [B, H', W', features]."""

    features: int
    kernel: int
    stride: int = 1
    precision: str = "f32"
    gain: float = HIDDEN_GAIN
    """Gain of the orthogonal weights."""
    padding: int = 0
    """Zeros on each side of an image."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Convolve; for uint8 images the kernel is divided by 255, since small integers are exact in any dtype."""
        compute, param = dtypes(self.precision)
        shape = (self.kernel, self.kernel, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.orthogonal(self.gain), shape, param)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), param)
        if x.dtype == jnp.uint8:
            kernel = kernel / 255.0
        if jnp.issubdtype(x.dtype, jnp.floating) or x.dtype == jnp.bool_:
            x = x.astype(compute)
        return convolve(x, kernel.astype(compute), self.stride, self.padding) + bias.astype(compute)


class ImageTorso(nn.Module):
    """Convolutions, which a subclass defines, then fully connected layers: [..., H, W, C] -> [..., widths[-1]]."""

    layers: tuple[Any, ...]
    """The convolutions; a subclass says in which form."""
    widths: tuple[int, ...]
    activation: str = "relu"
    precision: str = "f32"
    gain: float | None = HIDDEN_GAIN
    """Gain of the fully connected layers; see `MLP`."""
    channels_first: bool = False
    """Whether images are [..., C, H, W]."""
    normalised: bool = False
    """Normalise layers before their activations; of residual networks only the fully connected ones."""

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        """Evaluate the network."""
        x = image.reshape(-1, *image.shape[-3:])
        x = self.convolved(jnp.moveaxis(x, 1, 3) if self.channels_first else x, activation_named(self.activation))
        dense = MLP(self.widths, self.activation, self.precision, self.gain, normalised=self.normalised)
        return dense(x.reshape(*image.shape[:-3], -1))

    def convolved(self, x: jax.Array, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Apply the convolutions to images [B, H, W, C]."""
        raise NotImplementedError


class ConvTorso(ImageTorso):
    """Plain convolutions: `layers` are (features, kernel, stride) of each."""

    def convolved(self, x: jax.Array, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Convolve, layer by layer."""
        for features, kernel, stride in self.layers:
            x = Conv(features, kernel, stride, self.precision)(x)
            x = activation(layer_norm(self.precision)(x) if self.normalised else x)
        return x


class ResidualTorso(ImageTorso):
    """IMPALA's deep network (Espeholt et al., 2018): `layers` are the features of each section.

    In each section a convolution, a maximum over 3 x 3 with stride 2, and two residual blocks of two convolutions.
    """

    def convolved(self, x: jax.Array, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Convolve, section by section."""

        def convolution(x: jax.Array, features: int, gain: float = HIDDEN_GAIN) -> jax.Array:
            return Conv(features, 3, 1, self.precision, gain)(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))))

        for features in self.layers:
            x = nn.max_pool(convolution(x, features), (3, 3), (2, 2), "SAME")
            for _ in range(2):  # blocks start close to the identity, so that signals do not grow
                x = x + convolution(activation(convolution(activation(x), features)), features, gain=0.1)
        return activation(x)


NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""The convolutions of Mnih et al. (2015), for images with sides of at least 36."""

SMALL = ((16, 3, 1),)
"""The convolution of MinAtar's agents (Young & Tian, 2019)."""

RESNET = (16, 32, 32)
"""The sections of Espeholt et al. (2018)."""
