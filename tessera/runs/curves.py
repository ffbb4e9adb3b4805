"""Learning curves of runs, drawn to a file."""

from __future__ import annotations

from pathlib import Path

from tessera.errors import TesseraError
from tessera.runs import directory
from tessera.runs.metrics import read_metrics


def plot(folders: list[Path], out: Path) -> None:
    """Draw the training return of runs over environment steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves = [(folder, directory.read_config(folder), read_metrics(folder)) for folder in folders]
    for folder, _, rows in curves:
        if not any(r.get("train_return_mean") is not None for r in rows):
            raise TesseraError(f"{folder} has no finished episode to draw: train longer")
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for folder, config, rows in curves:
        points = [(r["env_steps"], r["train_return_mean"]) for r in rows if r.get("train_return_mean") is not None]
        label = f"{config['algorithm']['name']} × {config['policy']}, seed {config['seed']} ({folder.name})"
        axes.plot(*zip(*points, strict=True), label=label)
    envs = sorted({config["env"] for _, config, _ in curves})
    axes.set(xlabel="environment steps", ylabel="mean return of the last 100 episodes", title=", ".join(envs))
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
