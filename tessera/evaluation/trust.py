"""Which names in a run folder may be imported. A folder from elsewhere is data: it decides nothing by itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.envs import make as make_env
from tessera.envs import runs_foreign_code
from tessera.envs.base import DeviceEnvironment, Environment, HostEnvironment
from tessera.errors import TesseraError
from tessera.support.imports import import_again, import_target
from tessera.support.named_objects import is_foreign

Trust = bool | Collection[str]
"""False: only Tessera's own names. True: also classes that a folder names. Names: these, whatever they are."""

OWN_ALGORITHMS = "tessera.algorithms."
"""How the path of each of Tessera's own begins; the package holds no code but ours."""


PASS_IT = "pass it again, as in tessera.load(run, env=...)"
"""What to do about an environment that no name makes."""


def is_nameless(env: str) -> bool:
    """Whether no name makes an environment again: that of a lambda, or of what a function defines, leads nowhere."""
    return "<" in env.partition("?")[0]


def trusted_environment(name: str, precision: str, trust: Trust) -> Environment:
    """Make the environment that a run folder names."""
    if is_nameless(name):
        raise TesseraError(
            f"the run's environment {name} was passed to train as an object, and no name makes it again: {PASS_IT}"
        )
    by_path = (
        name if ":" in name.partition("?")[0] else f"py:{name}"
    )  # a class that was passed to `train`, by the name of its definition
    if _named_by_user(name, trust) or not runs_foreign_code(by_path):
        return make_env(by_path, precision)
    if trust is not True:
        raise _refusal("environment", by_path, "--env", instead="" if by_path == name else f", or {PASS_IT}")
    is_path = by_path.startswith("py:")
    if is_path and not _is_environment_class(_import(by_path.removeprefix("py:").partition("?")[0], given=name)):
        raise TesseraError(
            f"the run's environment {by_path!r} is no class of environments, and only such a class is made for a "
            f"run folder: add --env {by_path!r} if it is yours, or {PASS_IT}"
        )
    return make_env(by_path, precision)


def trusted_algorithm(path: str, trust: Trust) -> type[Algorithm]:
    """Import the class of the algorithm that a run folder names."""
    if not (path.startswith(OWN_ALGORITHMS) or trust is True or _named_by_user(path, trust)):
        raise _refusal("algorithm", f"py:{path}", "--algorithm")
    cls = import_again(path, f"the run's algorithm {path} cannot be imported")
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise TesseraError(f"the run's algorithm {path} is not an Algorithm: config.json is damaged")
    return cls


def trusted_networks(config: dict[str, Any], trust: Trust) -> None:
    """Refuse networks of the user's own that a run folder names, unless they are trusted."""
    for field, value in config.items():
        ours = is_foreign(value) and value.startswith("py:flax.")  # a class of Flax's own is no code of the folder's
        if is_foreign(value) and not (ours or trust is True or _named_by_user(value, trust)):
            raise _refusal(field, value, "--network")


def _named_by_user(name: str, trust: Trust) -> bool:
    """Whether the user has named it, with or without the prefix."""
    if isinstance(trust, bool):
        return False
    names = (trust,) if isinstance(trust, str) else trust
    return name.removeprefix("py:") in {other.removeprefix("py:") for other in names}


def _import(path: str, given: str) -> Any:
    try:
        return import_target(path)
    except TesseraError as error:
        if ":" in given:
            raise
        raise TesseraError(
            f"the run's environment {given!r} was passed to train as an object and cannot be made again by that name "
            f"({error}): {PASS_IT}"
        ) from error


def _is_environment_class(target: Any) -> bool:
    if not isinstance(target, type):
        return False
    import gymnasium  # only here, so that device environments never pay for it

    return issubclass(target, DeviceEnvironment | HostEnvironment | gymnasium.Env)


def _refusal(what: str, name: str, flag: str, instead: str = "") -> TesseraError:
    return TesseraError(
        f"the run's {what} {name!r} is not one of Tessera's, and to make it would run code that the folder names: "
        f"add --trust (trust=True in Python) if you know where the run comes from, or {flag} {name!r} "
        f"(trust=[{name!r}]){instead}"
    )
