"""Code that all pictures share: matplotlib where it is installed, colours, scales of shares, whole files."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

from winnow.errors import ConfigError, DataError
from winnow.state.disk import write_output

try:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import (
        EngFormatter,
        FixedLocator,
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullLocator,
        PercentFormatter,
    )
except ImportError as error:  # an extra: a run needs no picture
    raise ConfigError(
        f"drawing needs matplotlib ({error})",
        remedy="pip install 'winnow-rl[plot]'; or, on the command line, use --summary-only of `winnow plot`, --no-plot "
        "of other commands",
        code="config.not_installed",
    ) from error

__all__ = [
    "COLORS", "MARK", "EngFormatter", "Figure", "FixedLocator", "FuncFormatter", "Line2D", "LogLocator", "MaxNLocator",
    "NullLocator", "Patch", "new_figure", "picture", "save_figure", "scale_of_shares",
]  # fmt: skip

# Okabe and Ito's colours, which colour-blind readers can distinguish; lines also differ in style or marker.
COLORS = {"blue": "#0072b2", "orange": "#d55e00", "green": "#009e73", "purple": "#aa4499", "grey": "#777777"}
METADATA = {"svg": {"Date": None}, "png": {"Software": "winnow"}}
MARK = b"Software\0winnow"  # in the first bytes of every PNG


def new_figure(width: float, height: float) -> Figure:
    """An empty picture, with width and height in inches. It needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path, *, dpi: int = 120) -> None:
    """Write a picture in the format of the suffix, by default PNG. It replaces an older file; a link itself is
    replaced, not its target.

    Raises DataError for a bad path.
    """
    write_output(path, picture(figure, path, dpi=dpi))


def picture(figure: Figure, path: Path, *, dpi: int = 120) -> bytes:
    """The bytes of a picture in the format of a file's suffix, by default PNG. Raises DataError for another format."""
    drawn, kind = io.BytesIO(), path.suffix[1:] or "png"
    same = {"svg.hashsalt": "winnow", "svg.fonttype": "none"}  # equal pictures have equal bytes; text stays text
    try:
        with warnings.catch_warnings(), matplotlib.rc_context(same):
            warnings.filterwarnings("ignore", message="Glyph")  # characters that the font lacks become boxes
            figure.savefig(drawn, format=kind, dpi=dpi, metadata=METADATA.get(kind))
    except ValueError as error:
        raise DataError(
            f"cannot draw {path}: {error}",
            remedy="name a file with another suffix, such as .png or .svg",
            code="data.unwritable",
        ) from error
    return drawn.getvalue()


def scale_of_shares(panel: Any, label: str) -> None:
    """The y axis in percent."""
    panel.set_ylabel(f"{label} (%)")
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
