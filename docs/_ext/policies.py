"""Directives `policies-table`, `policy-facts` and `policy-measured`: what pages say of distribution policies.

What they show comes from `tessera/policies/` and from the table of measurements in docs/policies.md. The functions make
Markdown and need no Sphinx.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _ext.markdown import add_markdown_directive, table
from tessera import A2C, DQN, ES, PPO, policies
from tessera.errors import TesseraError
from tessera.graph.channel import Channel
from tessera.graph.disciplines import InTurn, bound_of, lag_of
from tessera.graph.plan import Plan
from tessera.graph.policy import ALL_DEVICES, EACH_AGENT, MODES, Fragment, Policy
from tessera.planning.prepare import prepare_plan

if TYPE_CHECKING:
    from sphinx.application import Sphinx

INDEX = Path(__file__).resolve().parent.parent / "policies.md"
ENV = "gymnax:CartPole-v1"
EXAMPLES: dict[str, Any] = {
    "central": A2C(),
    "decentralised": A2C(),
    "distributed_replay": DQN(prioritised=True),
    "gorila": DQN(),
    "hogwild": A2C(),
    "mirrored": ES(),
}
"""Algorithms that show a policy well; all others are shown for PPO."""


def policies_table() -> str:
    """Every named policy, with a link to its page."""
    rows = []
    for name in policies.names():
        policy = policies.get(name)
        fragments = ", ".join(fragment_of(fragment) for fragment in policy.fragments)
        rows.append((f"[`{name}`](policies/{name}.md)", policy.summary, fragments, policy.mirrors))
    return table(("policy", "in one line", "fragments", "mirrors"), rows)


def fragment_of(fragment: Fragment) -> str:
    """A fragment in short, as `tessera policies` shows it."""
    count = f"× {fragment.replicas}"
    if fragment.devices == ALL_DEVICES:
        count = "× devices"
    elif fragment.by == "agents" and fragment.replicas == EACH_AGENT:
        count = "× agents"
    return f"`{' '.join(fragment.names)}` {count}"


def policy_facts(name: str) -> str:
    """Options of a policy and what they do, its fragments, and how each stream that it cuts behaves."""
    maker = policies.maker(name)
    parts = [table(("option", "default", "takes"), _options(name)), inspect.getdoc(maker) or ""]
    fragments = [(f"`{'+'.join(f.names)}`", fragment_of(f).rpartition(" ")[2]) for f in policies.get(name).fragments]
    parts.append(table(("fragment", "replicas by default"), fragments))
    algorithm = EXAMPLES.get(name, PPO())
    for text, policy in variants(name):
        *_, plan = prepare_plan(algorithm, ENV, policy, engine="local")
        parts.append(f"Streams that `{text}` cuts, here for `{algorithm.name}`:")
        rows = [stream_row(plan, channel) for channel in plan.channels]
        parts.append(table(("stream", "between", "route", "rate", "discipline"), rows) if rows else "None.")
    return "\n\n".join(parts)


def _options(name: str) -> list[tuple[str, str, str]]:
    """Each option: its name, its default, and what it takes."""
    maker = policies.maker(name)
    types = typing.get_type_hints(maker)
    words = {
        "mode": " or ".join(f"`{mode}`" for mode in modes(name)),
        "carries": "`state` or `params`",
    }
    return [
        (f"`{key}`", f"`{_shown(default)}`", words.get(key) or taken(types[key]))
        for key, default in policies.options(maker).items()
    ]


def _shown(default: Any) -> str:
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)


def taken(annotation: Any) -> str:
    """What an option takes, in words."""
    words = {int: "a whole number", float: "a number", bool: "`true` or `false`", type(None): "`none`"}
    return " or ".join(words[kind] for kind in typing.get_args(annotation) or (annotation,))


def modes(name: str) -> list[str]:
    """The modes that a policy takes, its default first; none if it has no such option."""
    default = policies.options(policies.maker(name)).get("mode")
    found = []
    for mode in sorted(MODES, key=lambda mode: mode != default) if default else ():
        with contextlib.suppress(TesseraError):  # not this one
            policies.get(name, mode=mode)
            found.append(mode)
    return found


def variants(name: str) -> list[tuple[str, Policy]]:
    """The policy by default, and under each other mode that it takes: text for `--policy`, and policy."""
    others = [(f"{name}:mode={mode}", policies.get(name, mode=mode)) for mode in modes(name)[1:]]
    return [(name, policies.get(name)), *others]


def stream_row(plan: Plan, channel: Channel) -> tuple[str, ...]:
    """A stream that is cut: between which fragments, by what route, how often, and who waits for what."""
    ends = [plan.fragments[end] for end in (channel.source, channel.target)]
    between = " → ".join(f"`{end.title}` × {end.replicas}" for end in ends)
    one_by_one = isinstance(channel.discipline, InTurn)
    discipline = f"`{type(channel.discipline).__name__}`"
    if (bound := bound_of(channel.discipline)) is not None:
        discipline += f", at most {bound} behind"
    elif lag := lag_of(channel.discipline):
        discipline += f", {lag} behind"
    return (channel.stream, between, "one by one" if one_by_one else str(channel.route), channel.rate, discipline)


def policy_measured(name: str) -> str:
    """The lines of the table in docs/policies.md that are of a policy, whatever its options."""
    lines = [line for line in INDEX.read_text().splitlines() if line.startswith("|")]
    head = next(k for k, line in enumerate(lines) if line.startswith("| policy | algorithm | steps/s "))
    measured = [line for line in lines[head + 2 :] if policies.split(line.split("`")[1])[0] == name]
    if not measured:
        raise ValueError(f"{INDEX.name} has no measurement of {name!r}")
    return "\n".join([*lines[head : head + 2], *measured])


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    add_markdown_directive(app, "policies-table", policies_table, arguments=0)
    add_markdown_directive(app, "policy-facts", policy_facts)
    add_markdown_directive(app, "policy-measured", policy_measured)
    return {"parallel_read_safe": True}
