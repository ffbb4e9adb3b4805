"""REINFORCE with a baseline (Williams, 1992): your own algorithm, trained under two distribution policies."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

import tessera
from tessera.maths.distributions import for_actions
from tessera.maths.returns import discounted_returns
from tessera.networks import ActorCritic
from tessera.support.fields import option


@dataclass(frozen=True)
class Reinforce(tessera.Algorithm):
    """Make actions that returned more than expected likelier. All functions are pure, and none knows where it runs."""

    name = "reinforce"
    max_gradient_norm = 0.5
    anneal = True  # the learning rate, by the whole run's clock
    unroll: int = option(64, low=1)
    """Steps that each environment plays between updates."""
    learning_rate: float = option(5e-3, low=0)
    """Step size at the beginning; falls to zero by the end of the run."""
    gamma: float = option(0.99, low=0, high=1)
    """Discount per step."""

    network = property(lambda self: ActorCritic(self.world))
    schedule = property(lambda self: tessera.Schedule(self.unroll))
    optimizer = property(lambda self: optax.scale_by_adam())

    def init(self, key):
        """Make the params."""
        return self.network.init(key, jnp.zeros(self.world.observation_shape))

    def choose(self, params, observation):
        """The distribution over actions, and the return to expect."""
        head, baseline, _ = self.network.apply(params, observation)
        return for_actions(self.world.actions, head), baseline

    def act(self, view, memory, timestep, key):
        """One environment, one step: sample an action; nothing is remembered."""
        return self.choose(view.params, timestep.observation)[0].sample(key), memory, ()

    def greedy(self, view, memory, timestep, key):
        """Act without exploring, for evaluation."""
        return self.choose(view.params, timestep.observation)[0].mode(), memory

    def prepare(self, view, sample):
        """One group's unroll [T, n]: the return of each action, as rows."""
        t = sample.rows
        # at a truncation or the end of the unroll, the baseline stands for the rest; after a termination there is none
        cut = t.truncated.at[-1].set(True) & ~t.terminated
        _, rest = self.choose(view.params, t.next_observation)
        returns = discounted_returns(t.reward + self.gamma * cut * rest, self.gamma * ~(cut | t.terminated))
        counts = jnp.ones_like(returns) if t.valid is None else t.valid
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (t.observation, t.action, returns, counts)), ()

    def gradient(self, view, batch, summary, key):
        """Rows: the policy gradient, and that of the baseline's squared error."""
        observation, action, returns, counts = batch

        def loss(params):
            choice, baseline = self.choose(params, observation)
            surprise = returns - baseline
            policy = -choice.log_prob(action) * jax.lax.stop_gradient(surprise)
            return jnp.mean(counts * (policy + 0.5 * surprise**2))

        value, gradients = jax.value_and_grad(loss)(view.params)
        return gradients, tessera.Feedback({"loss": value})


if __name__ == "__main__":
    for name in ("fused", "single_learner_coarse"):
        tessera.train(Reinforce(), "gymnax:CartPole-v1", name, steps=900_000, seed=1)
