"""Environments by name, by factory or as objects; `make` adapts all of them to the interface of `base`."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import importlib
import inspect
from typing import Any

from tessera.envs.base import (
    PRECISIONS,
    Actions,
    Box,
    DeviceEnvironment,
    Discrete,
    Environment,
    HostEnvironment,
    HostVector,
    MultiDiscrete,
    Spec,
    Timestep,
    is_device,
)
from tessera.envs.wrappers import WRAPPERS, words_of, wrap_by_name
from tessera.envs.wrappers.own import name_of
from tessera.errors import RAISED_BY_USERS, TesseraError, unknown_name
from tessera.support.imports import import_target
from tessera.support.named_objects import module_of, parse_options

__all__ = [
    "PRECISIONS",
    "Actions",
    "Box",
    "DeviceEnvironment",
    "Discrete",
    "Environment",
    "HostEnvironment",
    "HostVector",
    "MultiDiscrete",
    "Spec",
    "Timestep",
    "is_device",
    "make",
    "renamed",
    "words_of",
]

FAMILIES = ("gymnax", "brax", "jaxmarl", "gymnasium", "envpool", "ale", "pettingzoo", "pgx")
"""Prefixes of environment names; each has an adapter, the module of that name in this package."""


def make(name_or_factory: Any, precision: str = "f32", **options: Any) -> Environment:
    """Make an environment from a name, a factory, a class or an object.

    Names are `gymnax:CartPole-v1`, `brax:ant`, `envpool:CartPole-v1`, `ale:pong`, `gymnasium:CartPole-v1` (or
    without the prefix), for several agents `jaxmarl:MPE_simple_spread_v3` and `pettingzoo:mpe2.simple_spread_v3`,
    and `py:package.module.Class` for a class or factory of yours. A factory may return one of Tessera's environments
    or a `gymnasium.Env`. `options` go to the constructor; a name may carry its own, as in
    `gymnax:MemoryChain-bsuite?memory_length=9`. Options that name wrappers (`WRAPPERS`; docs/environments.md) fit every
    environment: they are put around it in the order in which they are written, as in `?stack=4&clip_reward=1`.
    """
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    target, written = name_or_factory, {}
    if isinstance(target, str) and "?" in target:
        target, _, text = target.partition("?")
        written = parse_options(text, name_or_factory)
    wrappers = {key: value for key, value in (*written.items(), *options.items()) if key in WRAPPERS}
    if twice := sorted(wrappers.keys() & written.keys() & options.keys()):
        raise TesseraError(f"{name_or_factory!r} and an option both set {twice[0]}: leave one of them out")
    environment = _made(target, precision, {k: v for k, v in {**written, **options}.items() if k not in WRAPPERS})
    name = environment.name
    for wrapper, value in wrappers.items():
        environment = wrap_by_name(environment, wrapper, value)
    if written:  # the whole name makes the same environment again
        name = name_or_factory if ":" in target else f"gymnasium:{name_or_factory}"
    for wrapper in (key for key in wrappers if key not in written and wrappers[key] is not False):
        name += f"{'&' if '?' in name else '?'}{wrapper}{_written(wrappers[wrapper])}"
    return environment if name == environment.name else _with(environment, "name", name)


def _made(name_or_factory: Any, precision: str, options: dict[str, Any]) -> Environment:
    """Make an environment without wrappers."""
    try:
        environment = _build(name_or_factory, options)
    except TypeError as error:
        # With options, the constructor most likely does not take one of them; without, it is a bug.
        if not options:
            raise
        raise TesseraError(
            f"could not make {name_or_factory!r} with options {', '.join(sorted(options))} ({error}): "
            f"leave out the one it does not take{_nearest_wrapper(options)}"
        ) from error
    return _with_precision(_with_masks(environment), precision)


def _nearest_wrapper(options: dict[str, Any]) -> str:
    """A hint for an option that is nearly the name of a wrapper."""
    near = [match for option in options for match in difflib.get_close_matches(option, WRAPPERS, 1)]
    return f", or did you mean {near[0]}?" if near else ""


def runs_foreign_code(name: str) -> bool:
    """Whether making an environment of this name imports or calls what the name says, not only its family's own."""
    head, _, text = name.partition("?")
    if any(pair.partition("=")[0] == "wrap" for pair in text.split("&")):
        return True
    prefix, colon, rest = head.partition(":")
    if not colon:
        return False  # registered with Gymnasium
    if prefix == "gymnasium":  # module:Id imports the module
        return ":" in rest
    if prefix == "pettingzoo":
        from tessera.envs.pettingzoo import PACKAGES

        return not any(path.startswith(f"{package}.") for path in (rest, f"pettingzoo.{rest}") for package in PACKAGES)
    return prefix not in FAMILIES


def _build(name_or_factory: Any, options: dict[str, Any]) -> Environment:
    if not isinstance(name_or_factory, str):
        return _adopt(name_or_factory, _describe(name_or_factory), options)
    prefix, colon, name = name_or_factory.partition(":")
    if not colon:
        prefix, name = "gymnasium", name_or_factory
    if prefix == "py":
        return _adopt(import_target(name), name_or_factory, options)
    if prefix not in FAMILIES:
        raise unknown_name("environment prefix", prefix, (*FAMILIES, "py"))
    return importlib.import_module(f"tessera.envs.{prefix}").make(name, **options)


def _adopt(target: Any, name: str, options: dict[str, Any]) -> Environment:
    """Use an object as it is, or call a factory and adapt its result."""
    if isinstance(target, DeviceEnvironment | HostEnvironment) or _looks_like_device(target):
        if options:
            raise TesseraError(f"{name} is already made, so it takes no options: leave out {', '.join(options)}")
        return _complete(target, name)
    if not callable(target):
        raise TesseraError(
            f"{name} is not an environment that can be made anew: give a class or a function that makes one"
        )
    options = dict(options)
    autoreset = options.pop("autoreset", None)
    environment = _called(target, name, options)
    if isinstance(environment, DeviceEnvironment | HostEnvironment) or _looks_like_device(environment):
        if autoreset is not None:
            raise TesseraError(f"{name} is no Gymnasium environment, so it takes no option autoreset: leave it out")
        return _complete(environment, name)
    if hasattr(environment, "possible_agents"):
        from tessera.envs.pettingzoo import adapted

        environment.close()
        return adapted(name, functools.partial(target, **options), environment)
    # Only here, so that device environments never pay for the import of Gymnasium.
    from tessera.envs.gymnasium import wrap

    return wrap(target, environment, name, autoreset, options)


def _called(target: Any, name: str, options: dict[str, Any]) -> Any:
    """Call a factory; what it raises becomes a sentence, but for arguments that it does not take."""
    refuse_missing_arguments(target, name, options)
    try:
        return target(**options)
    except (TypeError, TesseraError):
        raise
    except RAISED_BY_USERS as error:
        raise TesseraError(f"{name} cannot be made: it raised {type(error).__name__} ({error})") from error


def refuse_missing_arguments(target: Any, name: str, options: dict[str, Any]) -> None:
    """Refuse a constructor or function that needs more arguments than there are."""
    try:
        inspect.signature(target).bind(**options)
    except TypeError as error:
        if not options:
            raise TesseraError(
                f"{name} cannot be made without arguments ({error}): give them, as in {name}?size=3, or give them "
                "defaults"
            ) from error
    except ValueError:  # some built-in callables have no signature
        return


def _looks_like_device(thing: Any) -> bool:
    """Whether `thing` has the members of a device environment; a `gymnasium.Env` has another kind of spec."""
    return (
        not isinstance(thing, type)
        and isinstance(getattr(thing, "spec", None), Spec)
        and all(callable(getattr(thing, member, None)) for member in ("reset", "step"))
    )


class _DuckTyped(DeviceEnvironment):
    """An object with `reset`, `step` and `spec`; the rest comes from the base class."""

    def __init__(self, thing: Any, name: str) -> None:
        self.name, self.spec = name, thing.spec
        self.reset, self.step = thing.reset, thing.step  # type: ignore[method-assign]
        for method in ("restart", "alive", "legal", "player", "info", "artist"):
            if hasattr(thing, method):
                setattr(self, method, getattr(thing, method))


def _complete(environment: Any, name: str) -> Environment:
    spec = getattr(environment, "spec", None)
    if not isinstance(spec, Spec) or not isinstance(spec.actions, Actions) or isinstance(spec.observation_shape, list):
        wrong = "has no spec" if spec is None else f"has the spec {spec}"
        raise TesseraError(
            f"{name} {wrong}, and networks are made for it: set spec to a tessera.Spec, as in "
            'Spec((4,), "float32", Discrete(2))'
        )
    if not isinstance(environment, DeviceEnvironment | HostEnvironment):
        return _DuckTyped(environment, getattr(environment, "name", name))
    if not hasattr(environment, "name"):
        environment = copy.copy(environment)
        object.__setattr__(environment, "name", name)
    return environment


def _with_masks(environment: Environment) -> Environment:
    """Note in the spec that a compiled environment says which actions are allowed."""
    if isinstance(environment, HostEnvironment) or environment.spec.restricted:
        return environment
    if getattr(type(environment), "legal", None) is DeviceEnvironment.legal and "legal" not in vars(environment):
        return environment
    import jax

    legal = jax.eval_shape(lambda key: environment.legal(environment.reset(key)[0]), jax.random.key(0))
    if legal is None:
        return environment
    return _with(environment, "spec", dataclasses.replace(environment.spec, restricted=True))


def _written(value: Any) -> str:
    """The value of a wrapper as a name says it."""
    if value is True:
        return ""
    if isinstance(value, tuple | list) and all(isinstance(entry, int) for entry in value):
        return "=" + ",".join(map(str, value))
    return f"={value if isinstance(value, int | float | str) else name_of(value)}"


def _with_precision(environment: Environment, precision: str) -> Environment:
    if environment.spec.precision == precision:
        return environment
    return _with(environment, "spec", dataclasses.replace(environment.spec, precision=precision))


def _with(environment: Environment, attribute: str, value: Any) -> Environment:
    """Set an attribute on a copy, so that the caller's object does not change."""
    environment = copy.copy(environment)
    try:
        object.__setattr__(environment, attribute, value)  # because environments may be frozen dataclasses
    except AttributeError as error:
        raise TesseraError(
            f"the {attribute} of {environment.name} cannot be set to {value} ({error}): make it an attribute"
        ) from error
    return environment


def renamed(environment: Environment, name: str) -> Environment:
    """The environment under another name."""
    return _with(environment, "name", name)


def _describe(thing: Any) -> str:
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{module_of(named)}.{named.__qualname__}"
