"""Value rescaling: by hand, against rlax, and back again."""

import jax.numpy as jnp
import numpy as np
import rlax

from tessera.maths.rescaling import signed_hyperbolic, signed_parabolic

VALUES = jnp.asarray([-800.0, -3.0, -0.1, 0.0, 0.5, 3.0, 99.0, 10_000.0])


def test_values_are_rescaled_as_the_paper_writes_and_as_rlax_does():
    np.testing.assert_allclose(signed_hyperbolic(jnp.asarray([3.0, -8.0])), [1.003, -2.008], rtol=1e-6)
    np.testing.assert_allclose(signed_hyperbolic(VALUES), rlax.signed_hyperbolic(VALUES), rtol=1e-6)
    np.testing.assert_allclose(signed_parabolic(VALUES[1:6]), rlax.signed_parabolic(VALUES[1:6]), rtol=1e-3, atol=1e-3)


def test_the_inverse_reads_values_back():
    np.testing.assert_allclose(signed_parabolic(signed_hyperbolic(VALUES)), VALUES, rtol=1e-5, atol=1e-6)
