"""What is shown while scenarios run: a bar on a terminal, else only what fails."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vmmcts.events import FAILED, TROUBLE, ScenarioResult
from vmmcts.plan import Job


class ProgressDisplay:
    """Counts results on ``console``; a callable for ``Runner.run``.

    It refreshes only when it is called: this program starts processes and has one thread.
    """

    def __init__(self, console: Console, what: str, total: int, *, failures: bool = True) -> None:
        self._failures = failures
        self._progress: Progress | None = None
        self._console = console
        if console.is_terminal:
            self._progress = Progress(
                TextColumn(what),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[latest]}", style="dim"),
                console=console,
                auto_refresh=False,
                transient=True,
            )
            self._task = self._progress.add_task(what, total=total, latest="")
        else:
            console.print(f"{what}: {total}", highlight=False)

    def __enter__(self) -> ProgressDisplay:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, job: Job, result: ScenarioResult) -> None:
        """Takes in one result."""
        if self._failures and result.outcome in FAILED | TROUBLE:
            self._console.print(
                f"[red]{escape(result.outcome)}[/] {escape(result.name)} ({result.worker})",
                soft_wrap=True,
                highlight=False,
            )
        if self._progress is not None:
            self._progress.update(self._task, advance=1, latest=escape(result.name[:60]))
            self._progress.refresh()
