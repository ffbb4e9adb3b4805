"""What the pages of algorithms take from the code, as Markdown: facts, options, metrics, and the table of all.

Nothing here knows Sphinx. An algorithm is bound to small worlds that are made up here, and traced in them: what it
refuses there, and why, is what the pages say.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from _ext.markdown import table
from tessera import algorithms, policies
from tessera.algorithms.contract import Algorithm
from tessera.cli.flags import field_docs
from tessera.engines.replica.replica import make_training
from tessera.envs import DeviceEnvironment, HostEnvironment, Spec
from tessera.envs.spec import Actions, Box, Discrete, MultiDiscrete, Symmetry
from tessera.errors import TesseraError
from tessera.planning.algorithm_policy_pairs import refusal, variants
from tessera.planning.choose import everything_together
from tessera.planning.prepare import HOST_ENVS, prepare_plan
from tessera.presets import presets_of
from tessera.program.initial import initial_state, timestep_shape
from tessera.program.shapes import slot_shapes
from tessera.program.training_program import acting, published
from tessera.support.fields import bounds_of, options_of, tunable_fields
from tessera.systems import SYSTEMS

DOCS = Path(__file__).resolve().parents[1]
ACTIONS: dict[str, Actions] = {
    "discrete": Discrete(3),
    "several discrete": MultiDiscrete((2, 3)),
    "continuous": Box((2,), (-1.0, -1.0), (1.0, 1.0)),
}
VECTOR, BOARD, PIXELS = ((4,), "float32"), ((10, 10, 4), "float32"), ((84, 84, 4), "uint8")
GAME = {"players": 2, "time_limit": 9, "restricted": True}
TWO_AGENTS = {"agents": 2}
KINDS: tuple[dict[str, Any], ...] = ({}, TWO_AGENTS, GAME)
"""One agent, several, and a game for two: an algorithm is tried in each until it plays."""
KINDS_OF_OBSERVATIONS = (
    "Some defaults depend on the environment. Pixels are images of bytes, boards are other images, and vectors all the "
    "rest; these have discrete actions, unless a default is for continuous ones."
)
METRICS_OF_ALL = ("gradient_norm",)
"""Numbers that a run reports about every algorithm's gradients (tessera/runs/metrics.py)."""


class MadeUpWorld(DeviceEnvironment):
    """An environment of any spec in which nothing happens; it is traced and never played."""

    def __init__(self, spec: Spec) -> None:
        self.name, self.spec = "made_up", spec

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Begin at 0."""
        del key
        return jnp.int32(0), self.spec.zeros(jnp)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        """Count steps."""
        del action, key
        reward = jnp.zeros(self.spec.reward_shape)
        return state + 1, self.spec.zeros(jnp), reward, jnp.bool_(False), state + 1 >= (self.spec.time_limit or 9)

    def legal(self, state: Any) -> Any:
        """Everything is allowed, where masks are asked for."""
        del state
        return jnp.ones(self.spec.mask_shape, bool) if self.spec.restricted else None

    def player(self, state: Any) -> Any:
        """Players take turns."""
        return jnp.int32(state % self.spec.players) if self.spec.players > 1 else None


class MadeUpHostWorld(HostEnvironment):
    """The same on the host; nobody opens it."""

    def __init__(self, spec: Spec) -> None:
        self.name, self.spec = "made_up_on_the_host", spec


class Fact(NamedTuple):
    """One row of the table: what is asked, the answer in a word or two, and what there is to add."""

    about: str
    answer: str
    detail: str = ""


def world(actions: Actions = ACTIONS["discrete"], seen: tuple[Any, str] = VECTOR, **more: Any) -> Spec:
    """The spec of a small world."""
    shape, dtype = seen
    if more.get("agents"):
        shape = (more["agents"], *shape) if not isinstance(shape, dict) else {k: (2, *s) for k, s in shape.items()}
    if isinstance(actions, Box):
        more["restricted"] = False
    return Spec(shape, dtype, actions, **more)


class Traced(NamedTuple):
    """What came of an algorithm in a world, without computing anything."""

    bound: Algorithm
    params: Any
    """Shapes of the params."""
    reads_mask: bool
    """Whether the action that it takes depends on the mask of legal actions."""


def traced(algorithm: Algorithm, spec: Spec) -> Traced:
    """Bind the algorithm to a world and trace how it begins and acts there; it may refuse."""
    env = MadeUpWorld(spec)
    bound = dataclasses.replace(algorithm.bound_to(env), envs=algorithm.default_envs)
    bound.check()
    key = jax.random.key(0)
    state = jax.eval_shape(lambda key: initial_state(bound, key, 1), key)
    view = jax.eval_shape(lambda state: acting(published(state)), state)
    memory = jax.eval_shape(
        lambda state, key: bound.ready(published(state), bound.memory(jnp.int32(0)), key), state, key
    )
    timestep = timestep_shape(env, bound.reads_state)

    def act(legal: Any, rest: Any) -> Any:
        view, memory, timestep, key = rest
        return bound.act(view, memory, timestep._replace(legal=legal), key)[0]

    rest = (view, memory, timestep._replace(legal=None), key)
    program = jax.make_jaxpr(act)(timestep.legal, rest).jaxpr
    masks = len(jax.tree.leaves(timestep.legal))
    return Traced(bound, state.params, masks > 0 and _depends(program, program.invars[:masks]))


def _depends(program: Any, inputs: Sequence[Any]) -> bool:
    """Whether what a traced program returns depends on some of its inputs."""
    reached = set(inputs)
    for equation in program.eqns:
        if any(x in reached for x in equation.invars if not hasattr(x, "val")):  # literals have a value
            reached |= set(equation.outvars)
    return any(x in reached for x in program.outvars if not hasattr(x, "val"))


def tried(algorithm: Algorithm, kinds: Iterable[dict[str, Any]], **given: Any) -> tuple[Traced | None, str]:
    """The first kind of world that the algorithm plays; None if it plays none, and why it refused the first."""
    reason = ""
    for kind in kinds:
        spec = world(**{**kind, **given})
        try:
            return traced(algorithm, spec), ""
        except (TesseraError, AssertionError) as error:
            reason = reason or str(error).replace(str(spec.actions), "others")
    return None, reason


@functools.cache
def instance(name: str) -> Algorithm:
    """The algorithm with its default options."""
    return algorithms.get(name)()


@functools.cache
def home(name: str) -> tuple[Spec, Algorithm]:
    """The first small world that an algorithm plays, and the algorithm bound to it."""
    for kind in KINDS:
        for actions in ACTIONS.values():
            found, _ = tried(instance(name), [kind], actions=actions)
            if found is not None:
                return found.bound.world, found.bound
    raise TesseraError(f"{name} plays none of the small worlds: add one that it plays to docs/_ext/algorithm_facts.py")


@functools.cache
def facts(name: str) -> tuple[Fact, ...]:
    """All facts about an algorithm."""
    return (
        *action_facts(name),
        *observation_facts(name),
        core_fact(name),
        *company_facts(name),
        host_fact(name),
        memory_fact(name),
        noise_fact(name),
        policy_fact(name),
        defaults_fact(name),
        literature_fact(name),
    )


def _yes_or_no(about: str, found: Traced | None, reason: str, detail: str = "") -> Fact:
    return Fact(about, "no", reason) if found is None else Fact(about, "yes", detail)


@functools.cache
def action_facts(name: str) -> tuple[Fact, ...]:
    """Which actions it can choose, and whether it keeps to those that are legal."""
    found = {kind: tried(instance(name), KINDS, actions=actions) for kind, actions in ACTIONS.items()}
    rows = [_yes_or_no(f"{kind} actions", *each) for kind, each in found.items()]
    masked, _ = tried(instance(name), KINDS, restricted=True)
    if masked is not None:
        rows.append(Fact("masks of legal actions", "yes" if masked.reads_mask else "no"))
    else:
        rows.append(Fact("masks of legal actions", "no", "only discrete actions have masks"))
    return tuple(rows)


def observation_facts(name: str) -> tuple[Fact, ...]:
    """Whether it reads images by convolutions, and observations of several arrays."""
    _, bound = home(name)
    kind = _kind_of(bound.world)
    images, reason = tried(instance(name), [kind], actions=bound.world.actions, seen=BOARD)
    several, why = tried(
        instance(name), [kind], actions=bound.world.actions, seen=({"near": (4,), "far": (2,)}, "float32")
    )
    convolves = images is not None and any(len(x.shape) == 4 for x in jax.tree.leaves(images.params))
    return (
        _yes_or_no("images", images, reason, "by convolutions" if convolves else "as one long vector"),
        _yes_or_no("observations of several arrays", several, why),
    )


def _kind_of(spec: Spec) -> dict[str, Any]:
    """The kind of a world among `KINDS`."""
    return TWO_AGENTS if spec.agents else GAME if spec.players > 1 else {}


def core_fact(name: str) -> Fact:
    """Whether its network can remember."""
    _, bound = home(name)
    about, default = "recurrent core", getattr(bound, "core", None)
    if default is None:
        return Fact(about, "no")
    if default != "none":
        return Fact(about, "always", f"`--core {default}` is the default")
    found, reason = tried(dataclasses.replace(instance(name), core="lstm"), KINDS, actions=bound.world.actions)
    return _yes_or_no(about, found, reason, "with `--core lstm` or `gru`")


def company_facts(name: str) -> tuple[Fact, ...]:
    """Whether it plays with several agents, and games for two."""
    _, bound = home(name)
    actions = bound.world.actions
    team = tried(instance(name), [TWO_AGENTS], actions=actions)
    game = tried(instance(name), [GAME])
    cards = tried(instance(name), [{**GAME, "hidden": True, "time_limit": 3}])
    long = tried(instance(name), [{**GAME, "hidden": True, "time_limit": 1000}])
    return (
        _yes_or_no("several agents", *team),
        _yes_or_no("games for two, by self-play", *game),
        _yes_or_no("games with hidden cards", *cards, "short ones by default" if long[0] is None else ""),
    )


def host_fact(name: str) -> Fact:
    """Whether environments may run on the host."""
    spec, _ = home(name)
    try:
        instance(name).bound_to(MadeUpHostWorld(spec)).check()
    except TesseraError as error:
        return Fact("environments on the host", "no", str(error).replace("made_up_on_the_host", "one on the host"))
    return Fact("environments on the host", "yes")


def memory_fact(name: str) -> Fact:
    """Where experience waits, and how often an update learns from it."""
    _, bound = home(name)
    s, store = bound.schedule, bound.store
    limited = dataclasses.replace(bound.world, time_limit=7)
    whole = instance(name).bind(limited).schedule.unroll == limited.time_limit
    steps = "as many steps as an episode may have" if whole else _count(s.unroll, "step")
    played = f"An update: {steps} in each environment"
    if not store.persistent:
        passes = f"{s.epochs} passes of {_count(s.minibatches, 'minibatch', 'minibatches')}"
        learned = passes if s.epochs * s.minibatches > 1 else "1 gradient"
        return Fact("memory", "none", f"{played}, then {learned}; experience is then dropped")
    kind = "a replay of sequences" if hasattr(bound, "sequence") else "a replay"
    detail = f"{store.capacity:,} rows. {played}, then {_count(s.draws, 'draw')} of {store.batch} rows"
    if hasattr(bound, "prioritised"):
        detail += "; prioritised" + ("" if bound.prioritised else " with `--prioritised`")
    return Fact("memory", kind, detail)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def noise_fact(name: str) -> Fact:
    """Whether its loss draws noise, which is then drawn for each row from a key of the row's own."""
    spec, bound = home(name)
    switches = list(_switches(bound))
    about = "noise in the loss"
    if bound.noisy_loss:
        return Fact(about, "yes", f"not with {', '.join(switches)}" if switches else "")
    still = Symmetry((0,), (0,))
    if (
        bound.reads_state
        and dataclasses.replace(bound, spec=dataclasses.replace(spec, symmetries=(still,) * 2)).noisy_loss
    ):
        return Fact(about, "sometimes", "boards are turned at random where the game has symmetries")
    return Fact(about, "sometimes", f"with {', '.join(switches)}") if switches else Fact(about, "no")


def _switches(bound: Algorithm) -> Iterator[str]:
    """Options which alone decide otherwise whether the loss is noisy: flags, and numbers that may be 0."""
    for field in options_of(bound):
        value = getattr(bound, field.name)
        if isinstance(value, bool):
            changed: Any = not value
        elif isinstance(value, float) and value and (bounds_of(type(bound), field.name) or (1, 0))[0] == 0:
            changed = 0.0
        else:
            continue
        if dataclasses.replace(bound, **{field.name: changed}).noisy_loss != bound.noisy_loss:
            yield f"`{_flag(field.name, changed)}`"


def _flag(name: str, value: Any) -> str:
    """How a value is given on the command line."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{dashed}"
    return f"--{dashed} {value:g}"


@functools.cache
def refused_policies(name: str) -> dict[str, list[str]]:
    """Why the algorithm does not run -> the policies under which it does not."""
    spec, _ = home(name)
    env, found = MadeUpWorld(spec), {}
    for text, policy in variants():
        if reason := refusal(instance(name), env, policy):
            found.setdefault(reason, []).append(text)
    return found


def policy_fact(name: str) -> Fact:
    """Under which distribution policies it runs."""
    refused, known = refused_policies(name), len(policies.names())
    if not refused:
        return Fact("distribution policies", f"all {known}", "in all of their modes ([policies](../policies.md))")
    reasons = [f"not {', '.join(f'`{p}`' for p in texts)}: {reason}" for reason, texts in refused.items()]
    return Fact("distribution policies", f"not all {known}", "; ".join(reasons))


def defaults_fact(name: str) -> Fact:
    """Environments and steps where the user names no number."""
    cls = algorithms.get(name)
    fewer = cls.default_envs > HOST_ENVS and host_fact(name).answer == "yes"
    detail = f"{HOST_ENVS} on the host; " if fewer else ""
    return Fact("environments by default", str(cls.default_envs), f"{detail}a run has {cls.default_steps:,} steps")


def literature_fact(name: str) -> Fact:
    """Systems of the literature that are this algorithm, and its presets."""
    systems = [system for system, each in SYSTEMS.items() if each.algorithm == name]
    pages = [f"[`{x}`](../systems/{x}.md)" if (DOCS / "systems" / f"{x}.md").exists() else f"`{x}`" for x in systems]
    presets = ", ".join(f"`{preset}`" for preset in presets_of(name))
    return Fact("systems of the literature", ", ".join(pages), f"presets: {presets}" if presets else "")


@functools.cache
def learned_metrics(name: str) -> dict[str, str]:
    """Names of the metrics `learn/…` that runs of an algorithm write -> the option that they need, or nothing."""
    spec, _ = home(name)
    always = _metrics(instance(name), spec)
    found = dict.fromkeys((*METRICS_OF_ALL, *sorted(always)), "")
    for field in options_of(instance(name)):
        value, own = getattr(instance(name), field.name), field.name not in Algorithm.__dataclass_fields__
        if own and value == 0 and isinstance(value, float):  # what is switched off
            try:
                more = _metrics(dataclasses.replace(instance(name), **{field.name: 1.0}), spec) - always
            except TesseraError:
                continue
            found |= dict.fromkeys(sorted(more), f"--{field.name.replace('_', '-')}")
    return {f"learn/{metric}": option for metric, option in found.items()}


def _metrics(algorithm: Algorithm, spec: Spec) -> set[str]:
    """What the gradient reports, by tracing the program."""
    bound, env, plan = prepare_plan(algorithm, MadeUpWorld(spec), everything_together(devices=1))
    return set(slot_shapes(make_training(plan, bound, env), plan)["metrics"])


@functools.cache
def metric_sentences() -> dict[str, str]:
    """Name of a metric in metrics.jsonl -> what docs/metrics.md says about it."""
    parts = re.split(r"^## ", (DOCS / "metrics.md").read_text("utf-8"), flags=re.MULTILINE)
    (body,) = [part for part in parts if part.startswith("`metrics.jsonl`")]
    rows = re.findall(r"^\| (`[^|]+`) \| (.+) \|$", body, flags=re.MULTILINE)
    return {name: sentence for cell, sentence in rows for name in re.findall(r"`([^`]+)`", cell)}


def option_rows(name: str, of_all: bool) -> list[tuple[str, ...]]:
    """Flag, default, bounds and docstring of the options that all algorithms have, or of the other ones."""
    cls = algorithms.get(name)
    docs = field_docs(cls)
    rows = []
    for field in options_of(cls):
        if (field.name in Algorithm.__dataclass_fields__) == of_all:
            flag = f"`--{field.name.replace('_', '-')}`"
            rows.append((flag, default_of(name, field), _bounds(cls, field.name), docs.get(field.name, "")))
    return rows


def default_of(name: str, field: dataclasses.Field[Any]) -> str:
    """The default of an option; where it depends on the environment, that of each kind of environment."""
    if field.default is not None:
        return _written(field.default)
    values: dict[str, list[str]] = {}
    for kind, bound in _bound_by_kind(name).items():
        values.setdefault(_written(getattr(bound, field.name)), []).append(kind)
    if len(values) < 2:
        return next(iter(values), "-")
    return "; ".join(f"{', '.join(kinds)}: {value}" for value, kinds in values.items())


@functools.cache
def _bound_by_kind(name: str) -> dict[str, Algorithm]:
    """The algorithm bound to each kind of environment that defaults depend on."""
    spec, _ = home(name)
    kinds: dict[str, dict[str, Any]] = {
        "vectors": {}, "boards": {"seen": BOARD}, "pixels": {"seen": PIXELS},
        "continuous actions": {"actions": ACTIONS["continuous"]},
    }  # fmt: skip
    found = {}
    for kind, given in kinds.items():
        try:
            bound = instance(name).bind(world(**{"actions": spec.actions, **_kind_of(spec), **given}))
            bound.check()
        except (TesseraError, AssertionError):
            continue
        found[kind] = bound
    return found


def _written(value: Any) -> str:
    """A default as one writes it on the command line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return f"`{' '.join(map(str, value))}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _bounds(cls: type, name: str) -> str:
    """The values that an option may have, if it has bounds."""
    bounds = bounds_of(cls, name)
    if bounds is None:
        return ""
    low, high = bounds
    return f"{low:g} to {high:g}" if high < float("inf") else f"at least {low:g}"


def facts_table(name: str) -> str:
    """The facts as Markdown."""
    rows = [(row.about, row.answer, _quoted(row.detail)) for row in facts(name)]
    return _table(("with", "answer", "why, or how"), rows)


def metrics_table(name: str) -> str:
    """The metrics as Markdown, each with the sentence of docs/metrics.md."""
    rows = []
    reported, order = learned_metrics(name), list(metric_sentences())
    for metric in sorted(reported, key=lambda x: order.index(x) if x in order else len(order)):
        sentence, option = metric_sentences().get(metric, ""), reported[metric]
        needs = f" (only with `{option}`)" if option and option not in sentence else ""
        rows.append((f"`{metric}`", sentence + needs))
    return _table(("name", "what it is"), rows)


def options_table(name: str) -> str:
    """The options as Markdown: those of the algorithm, then those that every algorithm has."""
    head = ("flag", "default", "allowed", "what it does")
    own, of_all = ([(*row[:3], _quoted(row[3])) for row in option_rows(name, of_all)] for of_all in (False, True))
    parts = [_table(head, own), "Every algorithm has these too:", _table(head, of_all)]
    if any("vectors" in row[1] for row in own):
        parts.insert(0, KINDS_OF_OBSERVATIONS)
    return "\n\n".join(parts)


def algorithms_table() -> str:
    """One line for each algorithm."""
    rows = []
    for name in algorithms.ALGORITHMS:
        can = [row.about.removesuffix(" actions") for row in action_facts(name)[: len(ACTIONS)] if row.answer == "yes"]
        paper = SYSTEMS[name].paper if name in SYSTEMS else ""
        about = algorithms.get(name).summary
        rows.append((f"[`{name}`]({name}.md)", about, ", ".join(can), memory_fact(name).answer, paper))
    return _table(("algorithm", "what it is", "actions", "memory", "paper"), rows)


def tunable_table() -> str:
    """What a population may tune of each algorithm."""
    rows = [
        (f"[`{name}`](algorithms/{name}.md)", ", ".join(f"`{field}`" for field in tunable_fields(algorithms.get(name))))
        for name in algorithms.ALGORITHMS
    ]
    return _table(("algorithm", "fields"), rows)


def presets_table() -> str:
    """All presets, with where their settings come from."""
    rows = [
        (f"[`{name}`](algorithms/{name}.md)", f"`{each.name}`", ", ".join(f"`{env}`" for env in each.environments),
         re.sub(r"docs/(decisions/(\d+)[\w-]*\.md)", r"[\2](\1)", each.source))
        for name in algorithms.ALGORITHMS for each in presets_of(name).values()
    ]  # fmt: skip
    return _table(("algorithm", "preset", "for", "where its settings come from"), rows)


def _quoted(text: str) -> str:
    """Text with its flags in code, where typography leaves their dashes alone."""
    return re.sub(r"(?<![`\w-])--[a-z][a-z-]*", lambda found: f"`{found[0]}`", text)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, whatever its cells hold."""
    return table(head, ([cell.replace("|", "\\|") for cell in row] for row in rows))
