"""Convolutions: both ways of computing them agree, and uint8 images are scaled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera.networks.conv import NATURE, Conv, ConvTorso, convolve, convolve_by_patches, convolve_directly

CASES = [
    ((2, 20, 22, 3), 5, 8, 4, 0),
    ((2, 11, 10, 4), 6, 4, 2, 0),
    ((3, 9, 9, 2), 4, 3, 1, 0),
    ((2, 9, 8, 2), 3, 3, 2, 0),
    ((3, 6, 7, 2), 4, 3, 1, 1),
]


@pytest.mark.parametrize(("shape", "features", "k", "stride", "padding"), CASES)
def test_patches_compute_what_a_convolution_computes(shape, features, k, stride, padding):
    x = jax.random.normal(jax.random.key(0), shape)
    kernel = jax.random.normal(jax.random.key(1), (k, k, shape[-1], features))
    want = convolve_directly(x, kernel, stride, padding)
    np.testing.assert_allclose(convolve_by_patches(x, kernel, stride, padding), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(convolve(x, kernel, stride, padding), want, rtol=1e-4, atol=1e-4)
    assert padding == 0 or want.shape[:3] == shape[:3]


@pytest.mark.parametrize(("shape", "features", "k", "stride", "padding"), CASES)
def test_both_gradients_are_those_of_a_convolution(shape, features, k, stride, padding):
    x = jax.random.normal(jax.random.key(0), shape)
    kernel = jax.random.normal(jax.random.key(1), (k, k, shape[-1], features))

    def loss(by):
        return lambda x, kernel: jnp.sum(jnp.sin(by(x, kernel, stride, padding)))

    got = jax.jit(jax.grad(loss(convolve), argnums=(0, 1)))(x, kernel)
    want = jax.jit(jax.grad(loss(convolve_directly), argnums=(0, 1)))(x, kernel)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_on_a_cpu_the_kernel_gradient_is_a_matrix_product():
    x, kernel = jnp.ones((2, 9, 9, 3)), jnp.ones((3, 3, 3, 4))
    lowered = jax.jit(jax.grad(lambda k: convolve(x, k, 1).sum())).lower(kernel)
    assert lowered.compile().as_text().count("convolution(") == 0


@pytest.mark.parametrize("shape", [(3, 2, 9, 9, 2), (3, 4, 2, 9, 9, 2)])
def test_each_of_several_kernels_convolves_its_own_images_without_a_grouped_convolution(shape):
    x = jax.random.normal(jax.random.key(0), shape)
    kernels = jax.random.normal(jax.random.key(1), (3, 3, 3, 2, 4))

    def loss(by):
        def one(x, kernel):  # images may be mapped over too, as environments are
            y = jax.vmap(lambda x: by(x, kernel, 1))(x) if x.ndim == 5 else by(x, kernel, 1)
            return jnp.sum(jnp.sin(y))

        return jax.vmap(jax.value_and_grad(one, argnums=(0, 1)))

    got = jax.jit(loss(convolve))
    for a, b in zip(
        jax.tree.leaves(got(x, kernels)), jax.tree.leaves(loss(convolve_directly)(x, kernels)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
    forward = jax.jit(
        jax.vmap(lambda x, k: jax.vmap(lambda x: convolve(x, k, 1))(x) if x.ndim == 5 else convolve(x, k, 1))
    )
    assert "feature_group_count" not in forward.lower(x, kernels).compile().as_text()


def test_uint8_images_are_divided_by_255_and_other_integers_are_not():
    layer = Conv(4, 3)
    image = jax.random.randint(jax.random.key(0), (2, 8, 8, 3), 0, 256).astype(jnp.uint8)
    params = layer.init(jax.random.key(1), image)
    got = layer.apply(params, image)
    np.testing.assert_allclose(got, layer.apply(params, image / 255.0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        layer.apply(params, image.astype(jnp.int32)), layer.apply(params, image.astype(jnp.float32)), rtol=1e-5
    )
    grads = jax.grad(lambda p: layer.apply(p, image).sum())(params)
    want = jax.grad(lambda p: layer.apply(p, image / 255.0).sum())(params)
    np.testing.assert_allclose(grads["params"]["kernel"], want["params"]["kernel"], rtol=1e-3)


def test_gradients_are_the_same_under_vmap_over_observations():
    torso = ConvTorso(((4, 4, 2), (5, 3, 1)), (6,))
    images = jax.random.randint(jax.random.key(0), (5, 14, 14, 2), 0, 256).astype(jnp.uint8)
    params = torso.init(jax.random.key(1), images[0])
    rows = jax.grad(lambda p: jnp.sum(torso.apply(p, images) ** 2))(params)
    mapped = jax.grad(lambda p: jnp.sum(jax.vmap(lambda x: torso.apply(p, x))(images) ** 2))(params)
    for a, b in zip(jax.tree.leaves(rows), jax.tree.leaves(mapped), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_the_nature_network_has_the_published_shapes():
    shapes = jax.eval_shape(ConvTorso(NATURE, (512,)).init, jax.random.key(0), jnp.zeros((84, 84, 4), jnp.uint8))
    kernels = sorted(x.shape for x in jax.tree.leaves(shapes) if len(x.shape) > 1)
    assert kernels == sorted([(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512)])
