"""Explorer of a study: its points as a table that selects, latency against throughput, and what
each setting did.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import ipywidgets  # type: ignore[import-untyped]
import polars as pl

from llmprof import charts, text
from llmprof.charts.base.save import to_png_bytes
from llmprof.errors import LlmprofError, listed

if TYPE_CHECKING:
    from llmprof.run.trials import Study

_STYLE: Final = "<style>.llmprof-study select{font-family:monospace;font-size:12px}</style>"
_LONGEST: Final = 28
_MOST_ROWS: Final = 14
_SHARE_PX: Final = 320


class Studied(ipywidgets.VBox):  # type: ignore[misc]
    """A study with its points and charts; made by :func:`study`.

    ``picked`` has the numbers of the chosen points (a trait), ``selected`` their rows.
    """

    def __init__(self, given: Study) -> None:
        self.study = given
        self.head, self.words = ipywidgets.Label(), ipywidgets.HTML()
        wide = ipywidgets.Layout(width="100%")
        self.table = ipywidgets.SelectMultiple(options=[], layout=wide, description="")
        self.details = ipywidgets.HTML()
        self.tabs = ipywidgets.Tab(children=[ipywidgets.VBox() for _ in _TABS], titles=list(_TABS))
        self.again = ipywidgets.Button(
            description="Read again", tooltip="Read what was measured in the meantime"
        )
        self.again.on_click(lambda _button: self.read())
        self.head.style.font_family = "monospace"
        self.table.observe(self._chosen, "value")
        self.tabs.observe(lambda _change: self._shown(), "selected_index")
        style = ipywidgets.HTML(_STYLE)
        super().__init__(
            [style, self.words, self.head, self.table, self.details, self.tabs, self.again]
        )
        self.add_class("llmprof-study")
        self._fill()

    def read(self) -> None:
        """Read the study again, which may still run; the choice of points stays."""
        kept = self.table.value
        self.study = import_module("llmprof.run.trials.study").open_study(self.study.folder)
        self._fill()
        self.table.value = [number for number in kept if number in self.study.points["point"]]

    @property
    def picked(self) -> list[int]:
        """Numbers of the chosen points, which can be set."""
        return sorted(self.table.value)

    @picked.setter
    def picked(self, numbers: list[int]) -> None:
        if unknown := sorted(set(numbers) - set(self.study.points["point"])):
            found = f"the study has no point {listed(unknown)}"
            raise LlmprofError(found, expected=f"0 to {self.study.points.height - 1}")
        self.table.value = list(numbers)

    @property
    def selected(self) -> pl.DataFrame:
        """Rows of ``study.points`` of the chosen points; all of them if none is chosen."""
        points = self.study.points
        return points.filter(pl.col("point").is_in(self.picked)) if self.picked else points

    def picture(self, tab: str) -> bytes:
        """PNG image of a tab's chart:

        ``Latency and throughput`` (with the chosen points) or ``Settings alone``.
        """
        made: dict[str, Callable[[], Any]] = {_TABS[0]: self._pareto, _TABS[1]: self._slices}
        return to_png_bytes(made[tab](), scale=1.5, theme="any")

    def _pareto(self) -> Any:
        latency, rate = self.study.axes
        counted = "requests" if rate == "goodput" else rate.removesuffix("_per_s")
        return charts.study_pareto(
            self.study.pareto, latency=latency, rate=counted, picked=self.picked
        )

    def _slices(self) -> Any:
        return charts.study_slices(self.study.slices, objective=self.study.objective.name)

    def _fill(self) -> None:
        points = self.study.points
        self.words.value = _html(self.study.says)
        settings = list(self.study.state["parameters"])
        figures = [self.study.objective, *(one.figure for one in self.study.slo)]
        shown = points.with_columns(
            pl.Series(
                one.name,
                [None if value is None else one.text(value) for value in points[one.name]],
                pl.String,
            )
            for one in figures
        ).with_columns(pl.col(settings).cast(pl.String).fill_null("default"))
        columns = [
            name for name in shown.columns if name not in {"label", "run", "error", "seconds"}
        ]
        columns = [
            name for name in columns if shown[name].null_count() < shown.height or name == "point"
        ]
        named = shown.select(columns).rename({name: name.rpartition(".")[2] for name in settings})
        lines = text.format_table(named, longest=_LONGEST).splitlines()
        lines = [
            line.replace(" ", "\N{NO-BREAK SPACE}") for line in lines
        ]  # a page joins other spaces
        rows = lines[1 : 1 + points.height]
        self.head.value = lines[0] if points.height else "Nothing is measured yet."
        self.table.options = list(zip(rows, points["point"], strict=True))
        self.table.rows = max(2, min(_MOST_ROWS, points.height))
        self._chosen(None)

    def _chosen(self, change: object) -> None:
        del change
        self.details.value = "".join(
            _html(self._says(row)) for row in self.selected.to_dicts() if self.picked
        )
        for box in self.tabs.children:
            box.children = ()
        self._shown()

    def _says(self, row: dict[str, Any]) -> str:
        where = f"run folder {self.study.folder / row['run']}" if row["run"] else "without a run"
        failed = f"; it failed: {row['error']}" if row["error"] else ""
        return f"Point {row['point']}, {row['label']}: {where}{failed}"

    def _shown(self) -> None:
        """Draw the open tab, unless it is drawn."""
        index = self.tabs.selected_index or 0
        box = self.tabs.children[index]
        if box.children:
            return
        try:
            if _TABS[index] == _TABS[2]:
                box.children = (ipywidgets.HTML(self._importance()),)
                return
            image = ipywidgets.Image(value=self.picture(_TABS[index]), format="png", width="900")
        except LlmprofError as error:
            box.children = (ipywidgets.HTML(_html(str(error))),)
            return
        image.alt = f"{_TABS[index]} of {self.study.folder.name}"
        box.children = (image,)

    def _importance(self) -> str:
        rows = self.study.importance.rows()
        if not rows:
            raise LlmprofError("the importance of settings needs at least four measured points")
        lines = "".join(
            f"<tr><td>{escape(name)}</td><td>{share:.0%}</td><td><div"
            " style='height:10px;background:#0072B2;"
            f"width:{round(share * _SHARE_PX)}px'></div></td></tr>"
            for name, share in rows
        )
        return f"<table><tr><th>setting</th><th>importance</th><th></th></tr>{lines}</table>"


_TABS: Final = ("Latency and throughput", "Settings alone", "Importance")


def study(folder: Any) -> Studied:
    """Explore a study of :func:`llmprof.tune`: a table whose points can be chosen, and its charts.

    A study that still runs can be opened, too; its button reads what was measured in the meantime.

    Parameters
    ----------
    folder : Study or path
        The study, or its folder.

    Returns
    -------
    Studied
        A widget; ``.picked`` are the numbers of the chosen points, ``.selected`` their rows of
        ``study.points``.

    Raises
    ------
    ReadError
        The folder holds no study.

    Examples
    --------
    >>> explore.study("results/tune_tiny_20260101-120000").selected  # doctest: +SKIP
    """
    # imported by name, because this layer must not import the trials
    trials = import_module("llmprof.run.trials.study")
    return Studied(folder if isinstance(folder, trials.Study) else trials.open_study(folder))


def _html(words: str) -> str:
    return f"<div style='margin:4px 0;max-width:105ch'>{escape(text.plain(words))}</div>"
