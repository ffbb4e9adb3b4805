"""`tessera profile`: measure what an algorithm costs in an environment on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.cli.options import parse_arguments, plan_arguments, policy_of

if TYPE_CHECKING:
    from tessera.profiling import Progress
    from tessera.profiling.profile import Profile


@dataclass
class ProfileOptions:
    """How long to measure."""

    seconds: float = 60.0
    """Seconds that it may take, at the most; at least 20."""
    again: bool = False
    """Measure even if a profile is saved that still holds."""
    ray: bool = False
    """Measure what calls of Ray cost, too, once for all algorithms: for plans on clusters."""


def profile_command(arguments: list[str]) -> None:
    """Run `tessera profile`."""
    world, options, algorithm = parse_arguments("profile", arguments, ProfileOptions)
    from tessera.errors import TesseraError
    from tessera.planning.prepare import prepare_plan
    from tessera.profiling.profile import path_of
    from tessera.profiling.ray_calls import check_ray
    from tessera.profiling.take import saved_or_taken
    from tessera.support.accelerators import share_accelerators

    if options.seconds < 20:
        raise TesseraError(f"--seconds {options.seconds:g}: starting and compiling alone take most of 20: ask for more")
    if options.ray:
        check_ray()
    share_accelerators()  # processes that measure want some too
    bound, env, plan = prepare_plan(algorithm, world.env, policy_of(world), **plan_arguments(world))
    how = {"again": options.again, "complete": True, "seconds": options.seconds}
    profile = saved_or_taken(bound, env, plan, progress_bar, **how)
    print(report(profile))
    if profile.gap:
        print(f"note      {profile.gap}")
    print(_where(path_of(profile.about)))
    if options.ray:
        print(_measure_ray())


def _measure_ray() -> str:
    """Measure calls of Ray, keep what was found, and say it."""
    from tessera.profiling.ray_calls import in_words, measure_calls_of_ray, save_calls

    with progress_bar() as progress:
        found = measure_calls_of_ray(lambda what: progress(what, 0.5))
        progress("done", 1.0)
    return f"ray       {in_words(found)}\n{_where(save_calls(found))}"


def _where(path: Path | None) -> str:
    """Where something was saved, in words."""
    return f"saved in {path}" if path else "not saved, since TESSERA_CACHE is empty"


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line whenever something else is measured."""
    if not sys.stderr.isatty():
        last = ""

        def show(what: str, share: float) -> None:
            nonlocal last
            if what != last:
                print(f"profile {share:4.0%}  {what}", file=sys.stderr, flush=True)
                last = what

        yield show
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("profile"), BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def report(profile: Profile) -> str:
    """What was found, one line for each."""
    about, costs = profile.about, profile.costs
    lines = [
        f"profile   {about['algorithm']} in {about['environment']}, {about['environments']} environments, "
        f"{about['groups']} groups",
        f"machine   {profile.machine.cores} cores, {profile.machine.accelerators} accelerators, "
        f"{profile.circumstances['processor']}",
    ]
    for name, points in costs.timings.items():
        for timing in points:
            calls = sorted(timing.calls)
            middle, slow = calls[len(calls) // 2], calls[int(0.95 * (len(calls) - 1))]
            size = f"{timing.envs:6d} environments, {timing.threads} threads"
            work = f"{1e3 * middle.seconds:9.3f} ms, 95 % within {1e3 * slow.seconds:9.3f}"
            lines.append(f"call      {size}  {work}  {name if len(name) < 80 else name[:77] + '...'}")
    for name, exchange in costs.exchanges.items():
        later = costs.after_wait.get(name, 0.0)
        lines.append(
            f"exchange  {1e6 * exchange.fixed:.0f} µs, {1e6 * exchange.per_link:.0f} µs a link and "
            f"{1e9 * exchange.per_byte:.2f} ns a byte, {1e6 * later:.0f} µs more after a wait  {name}"
        )
    lines.append(f"waking    {1e6 * costs.wake:.0f} µs, {1e6 * costs.switch:.0f} more while all cores are busy")
    for slot in costs.wakes:
        seconds, busy = costs.wake_for(slot, full=False), costs.wake_for(slot, full=True)
        lines.append(
            f"waking    {1e6 * seconds:.0f} µs, {1e6 * (busy - seconds):.0f} more while all cores are busy  {slot}"
        )
    held = ", ".join(f"{title} {size / 2**20:.0f} MB" for title, size in profile.process_bytes.items())
    lines.append(f"start     {profile.start_seconds:.1f} s on processes; memory: {held or 'not measured'}")
    return "\n".join(lines)
