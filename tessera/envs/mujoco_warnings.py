"""MuJoCo's warnings as Python's: each is shown once, and what only authors of models can change is not shown."""

from __future__ import annotations

import warnings


def use_python_warnings() -> None:
    """Have MuJoCo warn through Python in this process, instead of by a line for each environment and a log file.

    Somebody else's function for that stays.
    """
    try:
        import mujoco
    except ImportError:  # whoever makes the environment says so
        return
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_warn)


def _warn(text: str) -> None:
    category = DeprecationWarning if "deprecated" in text else RuntimeWarning
    warnings.warn(f"MuJoCo: {text}", category, stacklevel=1)
