"""The timeline of a run (`--trace`): the spans of all replicas in one file, written once the run is over."""

from __future__ import annotations

from pathlib import Path

from tessera.engines.replica.trace import merge_traces


def write_timeline(trace: Path | None) -> str:
    """Write the timeline, if one is asked for; why that was not possible."""
    try:
        if trace is not None:
            merge_traces(trace)
    except OSError as error:
        return f"the timeline could not be written to {trace} ({error.strerror}); all else of the run is complete"
    return ""
