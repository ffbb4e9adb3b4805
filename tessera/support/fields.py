"""Which fields of an algorithm are its user's."""

from __future__ import annotations

import dataclasses
from typing import Any

SET_BY_FRAMEWORK = {"set_by": "framework"}
"""Metadata of fields that are no hyper-parameters."""


def options_of(algorithm: Any) -> list[dataclasses.Field[Any]]:
    """The fields of an algorithm, or of a class of them, that users set."""
    return [f for f in dataclasses.fields(algorithm) if f.metadata.get("set_by") != "framework"]
