"""Every system on its task, until the task is solved; what was measured becomes docs/systems, one page for each.

    python benchmarks/systems.py                    # all of them: about 15 minutes
    python benchmarks/systems.py a3c impala         # some of them; the others keep their pages
    python benchmarks/systems.py ppo --seeds 3 4
    python benchmarks/systems.py ppo --seeds 3 4 --parallel 2      # two runs at a time, which share the cores

Runs take the way of `tessera train NAME ENV`: the system's settings and policy, and processes wherever the policy has
several replicas. What a page says comes from the system, its plan and its runs; only the notes are written here.
"""

import argparse
import shlex
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tessera import map_reduce
from tessera.algorithms.contract import Algorithm
from tessera.api import train
from tessera.engines.driver.pool import keep_processes
from tessera.errors import unknown_name
from tessera.graph.draw import render
from tessera.planning.prepare import prepare_plan
from tessera.runs.curves import plot
from tessera.systems import SYSTEMS, System, find

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "systems"
SCRIPT = "python benchmarks/systems.py"
SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Task:
    """What a system is trained on, and how long."""

    env: str = "gymnax:CartPole-v1"
    steps: int = 500_000
    """At the most: runs end when greedy episodes reach the target."""
    target: float | None = 475.0
    opponent: str | None = None
    """Who greedy episodes of a game are played against."""
    evaluate_every: int = 0
    """Updates between evaluations, where a curve is of them."""


HIDDEN = Task("gymnax:CartPole-v1?hide=1,3", 1_000_000)
"""For systems that remember: velocities are hidden, and have to be told from positions seen before."""

EXCEPTIONS: dict[str, Task] = {
    "alphazero": Task("pgx:tic_tac_toe", 60_000, None, "greedy", 5),
    "elf": Task("pgx:tic_tac_toe", 60_000, None, "greedy", 5),
    "mappo": Task("jaxmarl:MPE_simple_spread_v3", 2_000_000, None),
    "apex_dpg": Task("gymnax:Pendulum-v1", 200_000, -200.0),
    "ddpg": Task("gymnax:Pendulum-v1", 200_000, -200.0),
    "dpg": Task("gymnax:Pendulum-v1", 200_000, -200.0),
    "sac": Task("gymnax:Pendulum-v1", 40_000, -200.0),
    "td3": Task("gymnax:Pendulum-v1", 40_000, -200.0),
    "r2d2": HIDDEN,
    "async_q": Task(target=None),
    "q_learning": Task(target=None),
    "async_sarsa": Task(target=None),
    "async_nstep_q": Task(target=None),
}
"""Systems whose task does not follow from whether they remember."""

NOTES: dict[str, str] = {
    "a2c": "The synchronous form of A3C: all actors play a short unroll, their gradients are averaged, and one "
    "update of a large batch is made, so that nothing is ever stale and accelerators are filled. The batch is the "
    "same wherever the actors are: here they are one compiled program with the learner, and under `--policy "
    "single_learner_coarse` or `multi_learner` they are processes, with the same params after every update.",
    "a3c": "In the paper each worker pulls the params, plays up to 5 steps, computes a gradient and pushes it "
    "without waiting for anybody; RMSProp's statistics are shared by all. Over several machines that is a parameter "
    "server: under `central:mode=async` the workers hold environments, acting and gradients, and the server applies "
    "each gradient when it comes, to params that others have moved meanwhile. Advantages are not normalised, as in "
    "the paper, and unrolls have 8 steps.",
    "a3c_hogwild": "The paper ran its workers as threads of one machine, which read and update one parameter vector "
    "without locks, as Hogwild (2011) had shown to work. Here workers are processes and the vector is shared memory: "
    "what an update moved is added in place, element by element, so that what others added meanwhile stays. "
    "RMSProp's statistics are in that memory too: each worker writes its own, and all use their mean "
    "(`carries=state`).",
    "a3c_lstm": "The paper's second network has an LSTM between the torso and the heads, and scored higher on Atari: "
    "623 % of human on average, against 497 % without. The gradient of an unroll goes through the LSTM's steps "
    "within it, from what the actor remembered when the unroll began. The task hides CartPole's velocities, which a "
    "network without memory cannot do.",
    "alphazero": "In the paper thousands of processors play games with the newest network, moves are searched by "
    "800 simulations, and a learner draws positions of the last games; nobody waits. Here the search is mctx's, by "
    "default the one of Danihelka et al. (2022), which needs a few dozen simulations; layers are normalised one "
    "position at a time, nobody resigns, and the learner takes what actors send as it comes.",
    "apex_dpg": "Ape-X with continuous actions: the learner is a deterministic policy gradient with a critic, and "
    "actors explore by Gaussian noise of a fixed size. All else is as for [`apex_dqn`](apex_dqn.md).",
    "apex_dqn": "Many actors play, each with a share of random actions of its own, 0.4 to the power of 1 to 8, from "
    "the most curious to nearly greedy. They turn their steps into 3-step windows, compute first priorities with the "
    "params they have, and send both to replay shards. One learner draws from all shards, by priority within each "
    "group of environments, sends new priorities back, and publishes its params every 4 updates. The network is "
    "dueling, the target double, and importance weights keep the exponent 0.4. A shard that dies is started again "
    "empty, and refilled by actors while the learner goes on with the others.",
    "async_nstep_q": "As [`async_q`](async_q.md), with all rewards to the end of the unroll in place of one: values "
    "move faster, and of the three it learns CartPole best.",
    "async_q": "No replay: several actor-learners, each in environments of its own, make experience that differs "
    "enough to learn from at once. Each plays 5 steps, accumulates their gradients and sends them to the server, "
    "which applies each as it comes and keeps RMSProp's statistics and the target network for all. Each "
    "environment's share of random actions falls to 0.1, 0.01 or 0.5, with probabilities 0.4, 0.3 and 0.3. Whether "
    "more workers learn from fewer steps is measured by `python benchmarks/data_efficiency.py` "
    "([picture](../data_efficiency.png)).",
    "async_sarsa": "As [`async_q`](async_q.md), but values are drawn to that of the action which was really taken "
    "next, exploration included. The last step of an unroll is learned from with the next one, when that is known.",
    "dpg": "The policy is a function that gives one action, and learns by the slope of a critic, which learns as DQN "
    "does from a replay, towards slow copies of both. Two critics of which the lower counts, a policy that learns "
    "more seldom, and noise on the target's actions (TD3) are flags.",
    "c51": "DQN in which the network gives each action probabilities of 51 or 101 returns, fixed in advance, instead "
    "of one value. A target is the next action's distribution, discounted, moved by the reward and shared out to the "
    "nearest of these returns; the loss is the cross-entropy to it. Actions are chosen by the mean. Returns beyond "
    "`--lowest` and `--highest` cannot be told apart.",
    "ddpg": "The first deep form of the deterministic policy gradient: one critic, a policy that moves at every "
    "gradient, and noise on the actions that are played. It is [`dpg`](dpg.md) without TD3's three changes.",
    "downpour": "DistBelief trained networks too large for one machine: each model replica had its layers cut over "
    "several, computed gradients on its own share of the data, and pushed them, every so many steps and without "
    "waiting, to a sharded parameter server that it pulled params from every so many steps. Here a replica cuts its "
    "wide layers over two devices (`--mesh model=2` does that under any policy; on processors they are virtual), sends "
    "the mean of two gradients at a time (`push`) and gets params after every two that the server applied (`pull`). "
    "The paper's replicas also apply their own gradients between two pulls; these do not, so that what a gradient "
    "was computed with is always a version of the server's. What the paper trained with it was supervised; here it is "
    "the actor-critic of [`a3c`](a3c.md).",
    "dqn": "One learner replays random batches from a memory of past steps, and learns action values towards a "
    "target network that is a copy of older params. The paper has one actor with one environment; here 16 are played "
    "at once. Double, dueling, prioritised and n-step learning are flags of the same algorithm; double and windows of "
    "3 steps are on; with `--policy distributed_replay` or `gorila` the same text runs with replay or learners in "
    "processes of their own.",
    "elf": "ELF OpenGo plays many games at a time in one process, whose positions share batches of the network on a "
    "GPU. Here the games, the search, the replay and the learner are one compiled program: `--envs 1024` is a thousand "
    "games, and a search judges one position of each of them in a batch.",
    "es": "No gradients: every environment plays a member, the params with some noise, and params move towards the "
    "noise that earned more. Noise comes from seeds that everybody can draw from again, in antithetic pairs; returns "
    "count by their ranks. So under `--policy mirrored` workers exchange a seed and a score for each evaluation (17 "
    "bytes with everything, for 16 evaluations in a message), rebuild the same update, and have the same params and "
    "never send them; a worker that died is told them by a peer. In one place, as here, a whole population is one "
    "compiled program; larger ones than `--envs` are evaluated in rounds (`--population`), so that memory holds copies "
    "of the params for `--envs` members only. A member scores the mean return of the episodes that end within its "
    "unroll.",
    "gorila": "DQN with every part in several copies: actors, replay shards, learners and a parameter server in "
    "shards, none of which waits for another. Learners draw from their shards and send gradients, which the server "
    "applies one by one; gradients of params that are more than 20 updates old are dropped, and so are those whose "
    "loss lies above its running mean by more than 3 deviations (`learn/dropped`). The target network is the "
    "server's, renewed every 50 gradients. The paper's optimiser is `--optimiser adagrad`.",
    "gorila_bundled": "As [`gorila`](gorila.md), in the form that the paper ran on 100 machines: an actor, its own "
    "replay and its own learner together, around a server in 31 shards; here two such bundles and two shards.",
    "impala": "Actors only generate experience: they play unrolls with whatever params came last and queue them for "
    "the learner, so neither waits for the other. The learner's params have then moved on, and V-trace corrects for "
    "it: each step counts by the ratio of its probabilities now and then, cut off at 1. The pair is the algorithm "
    "`impala`, which is A2C with V-trace, and actors and a learner joined by an asynchronous queue; [this "
    "picture](../staleness.png) by `benchmarks/staleness.py` shows what becomes of it without corrections.",
    "impala_lstm": "The paper's deep network has an LSTM, and its learner starts every unroll from what the actor "
    "remembered, which travels with the experience. The ratios of V-trace are then between two networks that both "
    "remember. The task hides CartPole's velocities, which a network without memory cannot do.",
    "impala_multi": "The paper also has several learners, each with a share of the experience, which exchange "
    "gradients synchronously, so that all hold the same params. Under `multi_learner_coarse:mode=async` only actors "
    "run free; the mean of the gradients is an all-reduce between the learners at every minibatch.",
    "mappo": "PPO where several agents act together: each agent's policy sees its own observation, and the value "
    "function, which is needed in training only, sees what all of them see. All agents share one network unless "
    "`--separate` is given. Agents are one more axis of every array, so every policy that runs PPO runs this too. In "
    "simple spread three agents have to cover three landmarks without colliding; returns are negative, and no number "
    "is agreed on as solved.",
    "openai_five": "PPO with an LSTM at scale: rollout workers step the game, forward-pass workers choose actions in "
    "batches on accelerators (the form of 2019), and optimisers average their gradients by an all-reduce. Each of "
    "the three is a fragment of `split_inference`. In 2018 it ran on 128,000 preemptible cores and 256 GPUs. Its "
    "self-play against current and past params is not part of this entry. Rewards are scaled as for "
    "[`ppo_lstm`](ppo_lstm.md).",
    "ppo": "PPO makes several passes of minibatches over each batch of unrolls, and keeps the policy near the one "
    "that played them by cutting off the gradient of actions that have become much more or less likely. With "
    "everything in one place it is one compiled program; MSRL ran the same under other policies, and so can "
    "`--policy`: every synchronous one gives the same params.",
    "ppo_lstm": "PPO with an LSTM between torso and heads, for policy and value each. Minibatches are made of whole "
    "unrolls, which start from what was remembered when they were played. Rewards are scaled by default: with "
    "CartPole's own, the gradient is nearly all of the value's errors (norms of 10 to 1,000, clipped to 0.5), and on "
    "some seeds the policy is lost again.",
    "pqn": "Q-learning as PPO is run: many environments play a short unroll, which is learned from in a few passes of "
    "minibatches and dropped. There is neither a replay nor a target network: layer normalisation keeps values from "
    "diverging, and targets are lambda-returns.",
    "q_learning": "What the actor-learners of [`async_q`](async_q.md) run, in one place: 16 environments that explore "
    "each in its own way make one gradient.",
    "qr_dqn": "DQN in which the network gives each action quantiles of its return, by quantile regression. Unlike "
    "C51's returns they need no range that is fixed in advance.",
    "r2d2": "Ape-X ([`apex_dqn`](apex_dqn.md)) with an LSTM behind the torso. The replay holds sequences instead of "
    "windows, here of 24 steps, each with the state that the actor's LSTM had at the first of them; one begins every "
    "12 steps of an environment, so that they overlap by half. The learner's networks start from that state. The first "
    "8 steps are burn-in: they bring the state up to date with the params of today, and nothing is learned from them. "
    "Behind it double Q-learning looks 3 steps ahead, in values that are rescaled to about their square root; windows "
    "end with the episode or the sequence. A sequence's priority is 0.9 of its largest error and 0.1 of the mean. "
    "Unlike in the paper, sequences may hold the end of an episode and the beginning of the next, where the LSTM is "
    "reset; and the network sees neither the last action nor the last reward. The task hides CartPole's velocities, "
    "which a network without memory cannot do.",
    "rainbow": "Six extensions of DQN in one agent: distributions of returns ([`c51`](c51.md)), double and dueling "
    "networks, prioritised replay, windows of 3 steps, and noise on weights instead of random actions. Each is a flag: "
    "leaving one out is an ablation.",
    "sac": "An actor draws actions from a distribution, and is paid for its entropy as well as for reward; two critics "
    "learn both sums from a replay. The price of entropy, the temperature, is learned too, so that entropy stays near "
    "a target. Actor, critics and temperature are parts of the params, each with its own optimiser.",
    "seed_rl": "IMPALA turned inside out: actors have no network, and send each observation to the learner, which "
    "acts for whichever of them are ready, in one batch on its accelerator; no params travel. That is "
    "`single_learner_fine` with a bound on waiting: once an environment server is ready, the others have 1 ms to "
    "join its batch. Who was ready when changes nothing but the time (`python benchmarks/ready.py`). The learner "
    "learns when all have ended their unrolls, so experience is as fresh as its params, and V-trace has nothing to "
    "correct unless `--lag` is given.",
    "td3": "DDPG with three changes that keep values from growing without reason: two critics of which the lower "
    "counts, a policy that moves at every second gradient, and noise on the target's actions. As in the paper one "
    "gradient is made for each step.",
}
"""How the system of the paper works, and how the pair of algorithm and policy is the same."""


@dataclass(frozen=True)
class Row:
    """What one run gave."""

    seed: int
    steps_per_second: float
    seconds: float
    """From the first update, which compiles, until greedy episodes reached the target, or the end."""
    steps: int
    solved: bool
    greedy_return: float


def task_of(name: str) -> Task:
    """What a system is measured on."""
    return EXCEPTIONS.get(name) or (HIDDEN if SYSTEMS[name].options.get("core") else Task())


def made(name: str) -> tuple[Algorithm, System]:
    """A system's algorithm as the command line makes it, and the system."""
    cls, system = find(name)
    assert system is not None
    return cls(**system.options), system


def measure(run: tuple[str, int, str]) -> dict[str, Any]:
    """Train a system with a seed until the target or to the end, in a folder; a row as plain data."""
    name, seed, folder = run
    (algorithm, system), task = made(name), task_of(name)
    goal = {"steps": task.steps, "target_return": task.target, "opponent": task.opponent}
    goal |= {"evaluate_every": task.evaluate_every}
    result = train(algorithm, task.env, system.policy or None, **goal, seed=seed, run_dir=folder, quiet=True)
    summary = result.summary
    seconds = (summary["seconds_to_target"] or summary["wall_seconds"]) - result.metrics[0]["seconds"]
    figures = (summary["steps_per_second"], seconds, summary["env_steps"])
    row = Row(seed, *figures, bool(summary["solved"]), summary["eval_return_mean"])
    print("  ".join([name, task.env, *cells(task, row), f"seed {seed}"]), flush=True)
    return asdict(row)


def command(name: str, seed: int | None = None) -> str:
    """The command line of a measured run."""
    task = task_of(name)
    words = ["tessera", "train", name, task.env]
    if seed is not None:
        words += ["--steps", str(task.steps)]
        words += [] if task.target is None else ["--target-return", f"{task.target:g}"]
        words += [] if task.opponent is None else ["--opponent", task.opponent]
        words += ["--evaluate-every", str(task.evaluate_every)] if task.evaluate_every else []
        words += ["--seed", str(seed)]
    return shlex.join(words)


def settings(name: str) -> str:
    """The algorithm, and where it differs from its own defaults."""
    system = SYSTEMS[name]
    return ", ".join([f"`{system.algorithm}`", *(f"`{key}={value}`" for key, value in system.options.items())])


def policy_of(name: str) -> str:
    """The policy, or that there is a choice."""
    return f"`{SYSTEMS[name].policy}`" if SYSTEMS[name].policy else "chosen: `fused` for these environments"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def cells(task: Task, row: Row) -> tuple[str, str, str, str]:
    """Steps a second, seconds to the target, steps and greedy return, as text."""
    seconds = "-" if task.target is None else f"{row.seconds:.1f}" if row.solved else "not solved"
    greedy = f"{row.greedy_return:.0f}" if task.opponent is None else f"{row.greedy_return:.2f}"
    return f"{row.steps_per_second:,.0f}", seconds, f"{row.steps:,}", greedy


def page(name: str, rows: Sequence[Row]) -> str:
    """What a system is, what becomes of it here, and what was measured."""
    (algorithm, system), task = made(name), task_of(name)
    *_, plan = prepare_plan(algorithm, task.env, system.policy or None)
    seeds = [row.seed for row in rows]
    given = "" if tuple(seeds) == SEEDS else f" --seeds {' '.join(map(str, seeds))}"
    goal = "" if task.target is None else f" to {task.target:g}"
    planned = shlex.join(["tessera", "plan", name, task.env])
    lines = [
        f"# `{name}`",
        "",
        f"Made by `{SCRIPT} {name}{given}`; change the system or that script, not this page.",
        "",
        f"{system.summary[0].upper()}{system.summary[1:]} ({system.paper}).",
        "",
        *_paragraph(NOTES[name]),
        "",
        *markdown(["algorithm", "policy"], [[settings(name), policy_of(name)]]),
        "",
        *_block("sh", command(name)),
        "",
        "## Plan",
        "",
        f"`{planned}` prints, and with `--format mermaid` draws:",
        "",
        *_block("text", render(plan, "table")),
        "",
        *_block("mermaid", render(plan, "mermaid")),
        "",
        "## Measured",
        "",
        *_paragraph(
            f"On {task.env} {_until(task)}, {_place(plan.engine)}; seconds count from the end of the first update, "
            "before which programs are compiled."
        ),
        "",
        *_block("sh", "\n".join(command(name, seed) for seed in seeds)),
        "",
        *markdown(
            ["seed", "steps/s", f"seconds{goal}", "steps", "greedy return"],
            [[str(row.seed), *cells(task, row)] for row in rows],
        ),
        "",
        f"![Learning curves of {name}]({name}.png)",
    ]
    return "\n".join(lines) + "\n"


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, 119, break_long_words=False, break_on_hyphens=False)


def _block(language: str, text: str) -> list[str]:
    return [f"```{language}", *text.splitlines(), "```"]


def _until(task: Task) -> str:
    if task.opponent is not None:
        return f"for {task.steps:,} steps; greedy episodes are games against `{task.opponent}`, both sides played"
    if task.target is None:
        return f"for {task.steps:,} steps"
    return f"until 100 greedy episodes reach {task.target:g} on average, {task.steps:,} steps at the most"


def _place(engine: str) -> str:
    return "in one process" if engine == "serial" else "each replica a process, on the cores of one small machine"


COLUMNS = ("system", "paper", "algorithm", "policy", "command", "environment", "steps/s", "seconds to target",
           "greedy return")  # fmt: skip


def index_row(name: str, rows: Sequence[Row]) -> str:
    """A system's line of the index; figures of several seeds stand beside each other."""
    task = task_of(name)
    speed, seconds, _, greedy = (" / ".join(each) for each in zip(*(cells(task, row) for row in rows), strict=True))
    about = (f"[`{name}`]({name}.md)", SYSTEMS[name].paper, settings(name), policy_of(name), f"`{command(name)}`")
    return f"| {' | '.join((*about, task.env, speed, seconds, greedy))} |"


def index(new: Mapping[str, str]) -> str:
    """The index: new lines, and those of the page that is there for systems that were not run."""
    path = FOLDER / "README.md"
    old = path.read_text().splitlines() if path.exists() else []
    found = {name: line for name in SYSTEMS for line in old if line.startswith(f"| [`{name}`]")} | dict(new)
    lines = [
        "# Systems",
        "",
        f"Made by `{SCRIPT}`; change the systems or that script, not this page.",
        "",
        *_paragraph(
            "A system of the literature is a pair here: an algorithm with its settings, and a distribution policy. "
            "Each has a page that says how the pair is the system, what runs where, and how it learned. Runs end when "
            "greedy episodes reach 475, where the task has such a target; figures of several seeds stand beside each "
            "other. All were measured on the cores of one small machine, which shows that each system learns and what "
            "its exchanges cost, not how it scales."
        ),
        "",
        *markdown(COLUMNS, []),
        *(found[name] for name in SYSTEMS if name in found),
    ]
    return "\n".join(lines) + "\n"


def redo(name: str, seeds: Sequence[int], parallel: int) -> str:
    """Run a system, write its page and picture, and give its line of the index."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary, f"seed{seed}", name) for seed in seeds]
        runs = [(name, seed, str(folder)) for seed, folder in zip(seeds, folders, strict=True)]
        rows = map_reduce(measure, lambda found: [Row(**row) for row in found], runs, workers=parallel)
        plot(folders, FOLDER / f"{name}.png")
    (FOLDER / f"{name}.md").write_text(page(name, rows))
    return index_row(name, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("systems", nargs="*", help="which to redo; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="one run, and one curve, for each")
    parser.add_argument("--parallel", type=int, default=1, help="runs of one system at a time")
    options = parser.parse_args()
    for name in options.systems:
        if name not in SYSTEMS:
            raise SystemExit(str(unknown_name("system", name, SYSTEMS)))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with keep_processes():
        for name in options.systems or SYSTEMS:
            line = redo(name, options.seeds, options.parallel)
            (FOLDER / "README.md").write_text(index({name: line}))
    print(f"wrote {FOLDER}")


if __name__ == "__main__":
    main()
