"""What is odd about the columns of a table: a number of each row, one value alone, a scale of its own."""

import numpy as np

from fedsynth.data.sources import Source

APART = 1000  # the widest column spreads so many times as much as the narrowest
FAR = 1e6  # no network learns from numbers this large
WIDE = 20.0  # a standard deviation, where about one is wanted


def find_column_problems(source: Source) -> list[str]:
    """A sentence for each kind of odd column."""
    x = source.train.x
    if x.ndim != 2:
        return []
    names = np.array(source.columns or [f"number {place}" for place in range(x.shape[1])])
    spread = x.std(axis=0, dtype=np.float64)
    varied = names[spread > 0]
    found = {
        "has one value throughout; it tells nothing": names[spread == 0],
        "has another whole number in every row, as an identifier has; leave it out": names[_identifiers(x)],
        f"has values beyond {FAR:g}; scale it, or mend the values": names[np.abs(x).max(axis=0) > FAR],
    }
    problems = [f"{source.name}: column {_shown(columns)} {words}." for words, columns in found.items() if len(columns)]
    spread = spread[spread > 0]
    if len(spread) and (spread.max() > WIDE or spread.max() > APART * spread.min()):
        widest, narrowest = int(spread.argmax()), int(spread.argmin())
        problems.append(
            f'{source.name}: columns are not scaled: "{varied[widest]}" spreads by {spread[widest]:.3g}, '
            f'"{varied[narrowest]}" by {spread[narrowest]:.3g}. Scale them to a spread of about one.'
        )
    return problems


def _identifiers(x: np.ndarray) -> np.ndarray:
    """Which columns hold whole numbers, all different and without wide gaps."""
    if len(x) < 20:
        return np.zeros(x.shape[1], bool)
    ordered = np.sort(x, axis=0)
    steps = np.diff(ordered, axis=0)
    whole = (x % 1 == 0).all(axis=0)
    close = ordered[-1] - ordered[0] < 10 * len(x)
    return np.asarray(whole & close & (steps > 0).all(axis=0))


def _shown(columns: np.ndarray) -> str:
    more = f" and {len(columns) - 5} more" if len(columns) > 5 else ""
    return ", ".join(f'"{name}"' for name in columns[:5]) + more
