"""Measurements as tidy CSV: one row each, with what is needed to judge and to repeat it."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

import dcp

VALUES = ("p20", "p50", "p80")
PACKAGES = ("torch", "numpy", "numba")
SURROUNDINGS = ("unit", "samples", "seed", "commit", "dcp", "cpu", "cores", "python", *PACKAGES)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Samples of one quantity.

    Attributes:
        name: What was measured, such as "executor.cpu".
        parameters: Under which conditions; every one becomes a column.
        samples: One or more values.
        unit: Of the samples, such as "s".
    """

    name: str
    parameters: Mapping[str, object]
    samples: Sequence[float]
    unit: str


def quantiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The 20th, 50th and 80th percentile."""
    p20, p50, p80 = np.percentile(samples, [20, 50, 80]).tolist()
    return p20, p50, p80


def write_csv(path: Path, measurements: Sequence[Measurement], *, seed: int) -> None:
    """Write a row a measurement: name, parameters, `VALUES`, `SURROUNDINGS`.

    Args:
        path: File to write.
        measurements: One or more. A parameter that only some have is empty for the others.
        seed: Of whatever was random.
    """
    parameters = list(dict.fromkeys(key for each in measurements for key in each.parameters))
    surroundings = _surroundings()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["name", *parameters, *VALUES, *SURROUNDINGS])
        writer.writeheader()
        for each in measurements:
            row = {"name": each.name, **each.parameters}
            row |= dict(zip(VALUES, quantiles(each.samples), strict=True))
            row |= {"unit": each.unit, "samples": len(each.samples), "seed": seed}
            writer.writerow(row | surroundings)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows that `write_csv` has written."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def conditions(row: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Name and parameters of a row: equal for measurements of the same thing."""
    return tuple(item for item in row.items() if item[0] not in (*VALUES, *SURROUNDINGS))


def commit(folder: Path) -> str:
    """Commit of a checkout, with "-dirty" where it was changed; "unknown" without git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
    command += ["--exclude", "*"]  # no tags
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _surroundings() -> dict[str, object]:
    library = Path(dcp.__file__).parent
    return {
        "commit": commit(library),
        "dcp": version("dynamic-context-parallel"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _cpu_model() -> str:
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.exists() else []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
