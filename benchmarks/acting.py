"""Acting on the host: the compiled form against the NumPy form, and what that makes of collecting experience.

    python benchmarks/acting.py
    python benchmarks/acting.py --widths 64 256 --rows 16 256       # where the limits of `lowering.is_small` come from

The first table gives microseconds per act call, as medians over interleaved unrolls; each unroll has fresh params and
fresh keys, so that what either form does once per unroll is in it. The second gives environment steps per second of
collecting alone, on Gymnasium's CartPole.
"""

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from tessera import policies
from tessera.algorithms.dqn import DQN
from tessera.algorithms.ppo import PPO
from tessera.engines.serial import SerialEngine
from tessera.planning.prepare import prepare_plan
from tessera.program.compile import compile_program
from tessera.program.interpreter import call, drive
from tessera.program.nodes import Node, Op, Repeat, Segment
from tessera.program.numpy_lowering.lowering import Lowered, is_small

FORMS = ("jit", "numpy")
ENV = "gymnasium:CartPole-v1"


def engine_of(algorithm: Any, envs: int, form: str) -> SerialEngine:
    os.environ["TESSERA_LOWERING"] = form
    bound, env, plan = prepare_plan(algorithm, ENV, policies.get("fused", devices=1), envs=envs)
    engine = SerialEngine(plan, bound, env, 0, 100)
    engine.start()
    return engine


def segments(nodes: tuple[Node, ...]) -> Iterator[Segment]:
    for node in nodes:
        if isinstance(node, Repeat):
            yield from segments(node.body)
        elif isinstance(node, Segment):
            yield node


def acts(segment: Segment) -> bool:
    return "t" in segment.reads and any(isinstance(n, Op) and "actions" in n.writes for n in segment.nodes)


class Acting:
    """The act segment of a program and the slots to call it with."""

    def __init__(self, algorithm: Any, envs: int, form: str) -> None:
        engine = engine_of(algorithm, envs, form)
        engine.advance(1)
        self.slots = engine.replicas[0].slots
        self.steps = engine.training.algorithm.schedule.unroll
        self.segment = next(s for s in segments(engine.replicas[0].programs.updates) if acts(s))
        self.renew = jax.jit(lambda keys, view: (keys.reshape(keys.shape), jax.tree.map(lambda x: x + 0, view)))
        engine.close()

    def unroll(self) -> float:
        """Seconds per call, over one unroll with keys and params that were not there before."""
        keys, view = jax.block_until_ready(self.renew(self.slots["act_keys"], self.slots["acting"]))
        self.slots |= {"act_keys": keys, "acting": view}
        begin = time.perf_counter()
        for t in range(self.steps):
            self.slots["t"] = np.int32(t)
            call(self.segment, self.slots)
        return (time.perf_counter() - begin) / self.steps


def interleaved(algorithm: Any, rows: int, seconds: float) -> dict[str, Any]:
    """Median µs per call of both forms, and which of them the rule chooses."""
    both = {form: Acting(algorithm, rows, form) for form in FORMS}
    for acting in both.values():
        for _ in range(3):
            acting.unroll()
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["jit"]) < 5:
        for form in FORMS:
            times[form].append(both[form].unroll())
    out: dict[str, Any] = {form: float(np.median(times[form])) * 1e6 for form in FORMS}
    function = both["numpy"].segment.function
    assert isinstance(function, Lowered)
    assert function.acting == "numpy"
    staged = next(iter(function._forms.values())).staged
    out["calls"], out["work"] = len(staged.steps), staged.multiplications / rows
    groups = both["numpy"].slots["act_keys"].shape[1]
    steps = both["numpy"].steps
    out["rule"] = "numpy" if is_small(out["calls"], out["work"], rows // groups, steps) else "jit"
    return out


def collecting(algorithm: Any, envs: int, seconds: float) -> dict[str, float]:
    """Environment steps per second of collecting, both forms by turns: the median of unrolls."""

    def collector(form: str) -> Any:
        engine = engine_of(algorithm, envs, form)
        program = compile_program(engine.training.collect(), wanted=frozenset({"handed"}))
        slots = engine.replicas[0].slots
        steps = engine.training.algorithm.schedule.unroll * envs

        def collect() -> float:
            begin = time.perf_counter()
            for _ in drive(program, slots, None):  # type: ignore[arg-type]  # nothing is exchanged
                pass
            jax.block_until_ready(slots.get("handed", slots.get("buffer")))
            return steps / (time.perf_counter() - begin)

        return collect

    both = {form: collector(form) for form in FORMS}
    speeds: dict[str, list[float]] = {form: [] for form in FORMS}
    for collect in both.values():
        collect()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for form in FORMS:
            speeds[form].append(both[form]())
    return {form: float(np.median(speeds[form])) for form in FORMS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1024], help="observations per call")
    parser.add_argument("--widths", type=int, nargs="+", default=[64], help="of both hidden layers")
    parser.add_argument("--envs", type=int, default=16, help="environments to collect from")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    print(f"{'':12}{'rows':>6}{'jit µs':>10}{'NumPy µs':>10}{'ratio':>8}{'calls':>7}{'work/row':>10}  rule")
    for width in options.widths:
        for algorithm in (PPO(widths=(width, width)), DQN(widths=(width, width), batch=1024)):
            for rows in options.rows:
                got = interleaved(algorithm, rows, options.seconds)
                print(
                    f"{algorithm.name} {width}x{width}".ljust(12)
                    + f"{rows:6}{got['jit']:10.1f}{got['numpy']:10.1f}{got['jit'] / got['numpy']:8.2f}"
                    + f"{got['calls']:7}{got['work']:10.0f}  {got['rule']}",
                    flush=True,
                )
    print(f"\ncollecting on {ENV}, {options.envs} environments: steps per second")
    for algorithm in (PPO(), DQN()):
        speed = collecting(algorithm, options.envs, 2 * options.seconds)
        ratio = speed["numpy"] / speed["jit"]
        print(f"{algorithm.name:12}jit {speed['jit']:,.0f}   NumPy {speed['numpy']:,.0f}   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
