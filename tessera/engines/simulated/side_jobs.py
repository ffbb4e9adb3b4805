"""What runs beside the program of a replica: segments that Python does not wait for, and steps in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tessera.engines.simulated.virtual_time import Event


class SideJobs:
    """Jobs by number, each of which begins when earlier ones are done that it depends on."""

    def __init__(self) -> None:
        self._count = 0
        self._unfinished: dict[int, list[Event]] = {}
        """Jobs that are not done -> what waits for them."""

    def begin(self, after: Iterable[int], start: Callable[[Event], None]) -> int:
        """Start something once earlier jobs are done, and have it say when it is; its number."""
        self._count += 1
        job, needed = self._count, [k for k in after if k in self._unfinished]
        self._unfinished[job] = []
        left = len(needed)

        def ready() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                start(lambda: self._finish(job))

        for earlier in needed:
            self._unfinished[earlier].append(ready)
        if not needed:
            ready()
        return job

    def first_unfinished(self, jobs: Iterable[int]) -> int | None:
        """One of some jobs that is not done; None if all are."""
        return next((job for job in jobs if job in self._unfinished), None)

    def when_done(self, job: int, event: Event) -> None:
        """Have something happen when a job is done, which it is not yet."""
        self._unfinished[job].append(event)

    def _finish(self, job: int) -> None:
        for waiting in self._unfinished.pop(job):
            waiting()
