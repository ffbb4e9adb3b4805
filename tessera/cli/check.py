"""`tessera check`: what is wrong with an environment."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from tessera.cli.flags import check_flags, read_flags
from tessera.cli.options import look_in_current_folder


@dataclass
class CheckOptions:
    """Play random actions in an environment and say what is wrong with it; exit 2 if there is an error."""

    env: tyro.conf.Positional[str]
    """Environment, as for `tessera train`: py:module.Class, CartPole-v1, gymnax:CartPole-v1, …"""
    steps: int = 1000
    """Steps to play."""
    seed: int = 0
    """Seed of the environment and of the actions."""


def check_command(arguments: list[str]) -> None:
    """Run `tessera check`."""
    check_flags(arguments, CheckOptions)
    options = read_flags(CheckOptions, arguments, "tessera check")
    look_in_current_folder()
    from tessera.api import check_env

    report = check_env(options.env, steps=options.steps, seed=options.seed)
    print(report)
    if not report.ok:
        raise SystemExit(2)
