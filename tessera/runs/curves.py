"""Learning curves of runs, drawn to a file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tessera.errors import TesseraError
from tessera.runs import directory
from tessera.runs.metrics import read_metrics
from tessera.runs.seed_folders import run_folders
from tessera.runs.seeds import is_number, joined_rows

EVALUATED = "eval/return_mean"


class Curve(NamedTuple):
    """Returns over environment steps, of training or against an opponent; for several seeds their interquartile mean
    and its band."""

    steps: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]
    opponent: str = ""
    """Who was played against; nobody in training."""


def _curve(folder: Path, opponent: str | None) -> Curve:
    """The learning curve of a run, or of all seeds in a folder together.

    Where one run has played evaluations against an opponent, it is of these: in self-play nobody wins on average.
    """
    runs = run_folders(folder)
    if runs == [folder]:
        rows = read_metrics(folder)
        if not any(is_number(r.get(EVALUATED)) for r in rows):
            opponent = None
        names = ["train_return_mean" if opponent is None else EVALUATED] * 3
    else:
        opponent = None
        rows = joined_rows([read_metrics(run) for run in runs])  # not as written: they may still be training
        names = [f"train_return_{name}" for name in ("iqm", "iqm_low", "iqm_high")]
    points = [(r["env_steps"], *(r[name] for name in names)) for r in rows if is_number(r.get(names[0]))]
    if not points:
        raise TesseraError(f"{folder} has no finished episode to draw: train longer")
    steps, middle, low, high = (list(x) for x in zip(*points, strict=True))
    return Curve(steps, middle, low, high, "" if opponent is None else str(opponent))


def plot(folders: list[Path], out: Path, labels: list[str] | None = None) -> None:
    """Draw returns of runs over environment steps; runs are labelled by what they are, or by `labels`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    configs = [(folder, directory.read_config(folder)) for folder in folders]
    curves = [(folder, config, _curve(folder, config.get("opponent"))) for folder, config in configs]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for number, (folder, config, curve) in enumerate(curves):
        seeds, first = config.get("seeds"), config["seed"]
        which = f"seed {first}" if seeds is None else f"seeds {first} to {first + seeds - 1}"
        own = f"{config['algorithm']['name']} × {config['policy']}, {which} ({folder.name})"
        (line,) = axes.plot(curve.steps, curve.middle, label=labels[number] if labels else own)
        if seeds is not None:
            axes.fill_between(curve.steps, curve.low, curve.high, color=line.get_color(), alpha=0.2, linewidth=0)
    envs = sorted({config["env"] for _, config, _ in curves})
    several = any("seeds" in config for _, config, _ in curves)
    against = sorted({curve.opponent for *_, curve in curves if curve.opponent})
    what = f"mean return against {', '.join(against)}" if against else "mean return of the last 100 episodes"
    what += "\n(interquartile mean over seeds, 95 % band)" if several else ""
    axes.set(xlabel="environment steps", ylabel=what, title=", ".join(envs))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.savefig(out, dpi=150)
    except ValueError as error:
        raise TesseraError(f"cannot write {out} ({error}): name a .png, .pdf or .svg") from error
    except OSError as error:
        raise TesseraError(f"cannot write {out} ({error.strerror}): choose another place") from error
    finally:
        plt.close(figure)
