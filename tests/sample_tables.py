"""Write a table of sample data with its figures, for the README's recipes and their test.

    python3 tests/sample_tables.py FILE [SPEED]

SPEED (default 1) makes every kernel that much faster, some more and some less.
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support import COLUMNS, FIGURES

BEST = 1500.0  # GB/s that these kernels come to at most
# How much of what is expected they move at least and at most, and of the best bandwidth they reach.
CATEGORIES = {
    "pointwise": (1.0, 1.3, 0.5, 1.0),
    "reduction": (1.0, 2.5, 0.2, 0.8),
    "persistent_reduction": (0.9, 1.4, 0.3, 0.9),
}


def make_rows(speed: float) -> list[dict[str, object]]:
    """Rows of 120 kernels; the same ones each time."""
    rows: list[dict[str, object]] = []
    for number in range(120):
        chance = random.Random(number)
        category, (least, most, slow, fast) = chance.choice([*CATEGORIES.items()])
        name = f"triton_{category[:3]}_fused_{number}"
        expected = 10 ** chance.uniform(-4, -0.5)
        moved = expected * chance.uniform(least, most)
        bandwidth = BEST * chance.uniform(slow, fast) * expected / (expected + 0.002)
        bandwidth *= 1 + (speed - 1) * chance.uniform(0, 2)
        duration = moved / bandwidth * 1e6
        figures = (duration * 1.02, duration, bandwidth, moved)
        rows.append(
            {
                "kernel_name": name,
                "kernel_path": f"/cache/{name}.py",
                "kernel_category": category,
                "kernel_args_num_gb": f"{expected:.6f}",
                **{column: f"{value:.6g}" for column, value in zip(FIGURES, figures)},
            }
        )
    return rows


def main(file: str, speed: str = "1") -> None:
    """Write the table."""
    with open(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, [*COLUMNS, *FIGURES], lineterminator="\n")
        writer.writeheader()
        writer.writerows(make_rows(float(speed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
