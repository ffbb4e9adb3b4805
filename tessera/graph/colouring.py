"""Colourings in one line: `env+act@2/store+grad+apply` is a policy with two fragments, of which one has two replicas.

Fragments are separated by `/`. After `@` comes the number of replicas, and after `x` the devices of each (`all` for all
there are), and once more `x` the devices over which each copy's wide layers are cut. What follows a colon changes
disciplines: `async` (with `lag=N`, its bound) lets every cut stream that may be async be async, `gather` lets every
replica learn from all experience.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tessera.errors import TesseraError, unknown_name
from tessera.graph.operators import OPERATORS
from tessera.graph.policy import ALL_DEVICES, Cut, Fragment, Policy

EXAMPLE = "env+act@2/store+grad+apply"
OPTIONS = ("async", "gather", "lag")


def make_colouring(
    fragments: Sequence[Fragment], *, asynchronous: bool = False, lag: int | None = None, gather: bool = False
) -> Policy:
    """The policy with these fragments, named by its colouring in one line."""
    options = [*(["async"] if asynchronous else []), *([f"lag={lag}"] if lag is not None else [])]
    options += ["gather"] if gather else []
    name = "/".join(map(_fragment_text, fragments)) + (f":{','.join(options)}" if options else "")
    plain = Policy(name, tuple(fragments))
    cuts = _loose_cuts(plain, lag) if asynchronous else {"params": Cut(lag=lag)} if lag is not None else {}
    if gather:
        cuts["experience"] = Cut(route="gather")
    return Policy(name, plain.fragments, cuts)


def is_colouring(text: str) -> bool:
    """Whether a text is meant as a colouring: it begins with the name of an operator."""
    return re.split(r"[+@/:]", text.strip(), maxsplit=1)[0] in OPERATORS


def read_colouring(text: str) -> Policy:
    """The policy that a colouring in one line describes."""
    colours, _, rest = text.strip().partition(":")
    given: dict[str, str] = {}
    for option in filter(None, (part.strip() for part in rest.split(","))):
        name, _, value = option.partition("=")
        if name not in OPTIONS:
            raise unknown_name(f"option of colouring {colours!r}:", name, OPTIONS)
        given[name] = value
    lag = given.get("lag")
    if lag is not None and not lag.isdecimal():
        raise TesseraError(f"colouring {text!r}: lag={lag} must be a whole number")
    if given.get("async") or given.get("gather"):
        raise TesseraError(f"colouring {text!r}: async and gather have no value; write :async or :async,lag=2")
    return make_colouring(
        [_read_fragment(part, text) for part in colours.split("/")],
        asynchronous="async" in given,
        lag=None if lag is None else int(lag),
        gather="gather" in given,
    )


def partition_of(policy: Policy) -> str:
    """Which operators are together, without numbers: `env+act/store+grad+apply`."""
    return "/".join(fragment.title for fragment in policy.fragments)


def _fragment_text(fragment: Fragment) -> str:
    sizes = [fragment.replicas, fragment.devices, fragment.model]
    while len(sizes) > 0 and sizes[-1] == 1:
        sizes.pop()
    texts = ["all" if k == 1 and size == ALL_DEVICES else str(size) for k, size in enumerate(sizes)]
    return fragment.title + (f"@{'x'.join(texts)}" if texts else "")


def _read_fragment(text: str, whole: str) -> Fragment:
    operators, at, sizes = text.partition("@")
    numbers = sizes.split("x") if at else []
    if len(numbers) > 3 or not all(n.isdecimal() or (n, k) == ("all", 1) for k, n in enumerate(numbers)):
        raise TesseraError(
            f"colouring {whole!r}: {text!r} must be operators joined by +, then @ with replicas, or with replicas x "
            f"devices, as in {EXAMPLE} or grad+apply@1x4"
        )
    replicas, devices, model = [ALL_DEVICES if n == "all" else int(n) for n in numbers] + [1] * (3 - len(numbers))
    return Fragment(" ".join(operators.split("+")), replicas=replicas, devices=devices, model=model)


def _loose_cuts(policy: Policy, lag: int | None) -> dict[str, Cut]:
    """Every cut stream that may be async, except among peers; params never wait then."""
    cuts = {"params": Cut("async", lag)}
    for stream, source, target in (
        ("experience", "act", "store"),
        ("samples", "store", "grad"),
        ("gradients", "grad", "apply"),
    ):
        if policy.home(source) != policy.home(target):
            cuts[stream] = Cut("async")
    if "samples" in cuts:  # a store may draw again before priorities are back
        cuts["priorities"] = Cut(lag=0 if lag == 0 else 1)
    return cuts
