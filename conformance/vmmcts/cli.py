"""The command line."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vmmcts import catalog, diff, manifest, mutants, tools
from vmmcts import clauses as clause_files
from vmmcts import drivers as driver_names
from vmmcts.errors import ExitCode, UsageError, VmmctsError
from vmmcts.layout import Layout
from vmmcts.processes import Interrupted, interruptible, work_directory
from vmmcts.progress import ProgressDisplay
from vmmcts.reports import document, junit, page, terminal
from vmmcts.runner import Runner
from vmmcts.session import Selection, Session, Suite
from vmmcts.variants import VARIANTS

app = typer.Typer(
    name="vmmcts",
    help="Conformance suite for sharing CUDA virtual memory between processes.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_out = Console()
_err = Console(stderr=True)

_Json = Annotated[pathlib.Path | None, typer.Option("--json", help="Write the report there.")]
_Jobs = Annotated[int, typer.Option("-j", "--jobs", min=0, help="Coordinators at a time.")]
_DriverName = Annotated[
    str, typer.Option("--driver", help="softcuda, vendor, or the path of a libcuda.so.1.")
]


def _default_jobs(jobs: int) -> int:
    return jobs or len(os.sched_getaffinity(0))


@app.command()
def run(
    implementation: Annotated[
        str,
        typer.Argument(help="A name, a manifest (.toml), a library (.so) or MODULE:CLASS."),
    ] = "reference",
    json_file: _Json = None,
    junit_file: Annotated[
        pathlib.Path | None, typer.Option("--junit", help="Write a JUnit report there.")
    ] = None,
    html_file: Annotated[
        pathlib.Path | None, typer.Option("--html", help="Write a page there.")
    ] = None,
    profile: Annotated[
        list[str] | None, typer.Option("--profile", help="Only this profile; repeat for more.")
    ] = None,
    jobs: _Jobs = 0,
    pattern: Annotated[
        str | None,
        typer.Option("--filter", help="Only scenarios with this in their name (or a * pattern)."),
    ] = None,
    clause: Annotated[
        list[str] | None, typer.Option("--clause", help="Only scenarios of this clause.")
    ] = None,
    worker: Annotated[
        list[str] | None, typer.Option("--worker", help="Only workers of this name or kind.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Run the scenarios in an order of this seed.")
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Run them in an order of a new seed, and say which.")
    ] = False,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Run everything so often, in the same processes.")
    ] = 1,
    driver: _DriverName = driver_names.SOFTCUDA,
    strict: Annotated[
        bool, typer.Option("--strict", help="A violated 'should' clause fails the run.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep plans, logs and event logs.")] = False,
) -> None:
    """Run the suite on an implementation and judge it.

    Exit status: 0 conformant, 1 violated, 2 usage, 3 infrastructure, 4 too little exercised.
    """
    layout = Layout.find()
    of = manifest.find(layout, implementation)
    for name in profile or ():
        if name not in clause_files.PROFILES:
            raise UsageError(f"no profile {name}: one of {', '.join(clause_files.PROFILES)}")
    selection = Selection(tuple(profile or ()), tuple(worker or ()), pattern, tuple(clause or ()))
    selection.workers(of)
    suite = Suite.load(layout)
    session = Session(
        layout,
        suite,
        of,
        driver_names.find(layout, driver, os.environ.get("SOFTCUDA_VARIANT", "")),
        selection,
        strict=strict,
    )
    session.check()
    if shuffle:
        seed = secrets.randbelow(1 << 32) if seed is None else seed
        _out.print(f"the order is that of --seed {seed}", highlight=False)
    report = _run(session, f"{of.name}: scenarios", _default_jobs(jobs), seed, rounds, keep)
    _write(report, json_file, junit_file, html_file)
    terminal.show(report, _out)
    for what, path in (("JSON", json_file), ("JUnit", junit_file), ("HTML", html_file)):
        if path is not None:
            _out.print(f"{what:5} {path}", highlight=False, soft_wrap=True)
    raise typer.Exit(report["exit_code"])


def _run(
    session: Session, what: str, jobs: int, seed: int | None, rounds: int, keep: bool
) -> dict[str, Any]:
    with interruptible(), work_directory(keep=keep) as work_dir:
        if keep:
            _err.print(f"work directory {work_dir}", highlight=False, soft_wrap=True)
        with ProgressDisplay(_err, what, session.total() * rounds) as progress:
            return session.run(
                work_dir, parallel=jobs, seed=seed, rounds=rounds, progress=progress
            )


def _write(
    report: dict[str, Any],
    json_file: pathlib.Path | None,
    junit_file: pathlib.Path | None,
    html_file: pathlib.Path | None,
) -> None:
    if json_file is not None:
        document.write(report, json_file)
    if junit_file is not None:
        document.save(junit_file, junit.render(report))
    if html_file is not None:
        document.save(html_file, page.render([report]))


@app.command()
def report(
    files: Annotated[list[pathlib.Path], typer.Argument(help="Reports of `run --json`.")],
    html_file: Annotated[
        pathlib.Path | None, typer.Option("--html", help="Write a page of all of them there.")
    ] = None,
    junit_file: Annotated[
        pathlib.Path | None, typer.Option("--junit", help="Write a JUnit report there (of one).")
    ] = None,
) -> None:
    """Show kept reports, and make pages of them: clauses × implementations."""
    reports = [document.load(path) for path in files]
    if junit_file is not None and len(reports) != 1:
        raise UsageError("--junit takes one report")
    for one in reports:
        terminal.show(one, _out)
    if junit_file is not None:
        document.save(junit_file, junit.render(reports[0]))
    if html_file is not None:
        document.save(html_file, page.render(reports))


@app.command()
def show(clause: Annotated[str, typer.Argument(help="The id of a clause.")]) -> None:
    """Show a clause, its scenarios, its mutants, and its verdicts in the reports that there are."""
    layout = Layout.find()
    known = clause_files.load(layout.clauses)
    found = known.get(clause.upper())
    if found is None:
        raise UsageError(f"no clause {clause}: `vmmcts clauses` lists them")
    level = clause_files.LEVELS[found.level]
    _out.print(f"[bold]{found.id}[/] {level}, profile {found.profile}", highlight=False)
    _out.print(escape(found.text), highlight=False)
    _out.print(f"[dim]source: {escape(found.source)}[/]", highlight=False)
    if found.facts:
        _out.print(f"[dim]measured: {escape(' '.join(found.facts))}[/]", highlight=False)
    for scenario in catalog.load(layout.program("vmmcts-scenarios")):
        if found.id in scenario.clauses:
            place = f"{pathlib.Path(scenario.file).name}:{scenario.line}"
            _out.print(f"  scenario {escape(scenario.name)} [dim]{place}[/]", highlight=False)
    for mutant in mutants.load(layout):
        if found.id in mutant.breaks:
            _out.print(
                f"  mutant {mutant.name} [dim]{escape(mutant.description)}[/]", highlight=False
            )
    for path in layout.reports():
        with contextlib.suppress(UsageError):  # JSON of another kind
            terminal.show_verdict(document.load(path), found.id, path.name, _out)


@app.command("clauses")
def list_clauses(
    profile: Annotated[str | None, typer.Option("--profile", help="Only of this profile.")] = None,
) -> None:
    """List the clauses."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("clause", "level", "profile", "what must hold"):
        table.add_column(column, overflow="fold")
    for clause in clause_files.load(Layout.find().clauses).values():
        if profile is None or clause.profile == profile:
            table.add_row(clause.id, clause.level, clause.profile, escape(clause.text))
    _out.print(table)


@app.command()
def scenarios(
    pattern: Annotated[str | None, typer.Option("--filter", help="As for run.")] = None,
    clause: Annotated[list[str] | None, typer.Option("--clause", help="As for run.")] = None,
) -> None:
    """List the scenarios with their clauses."""
    found = catalog.load(Layout.find().program("vmmcts-scenarios"))
    if pattern is not None or clause:
        found = catalog.select(found, pattern, clause or ())
    for scenario in found:
        carried = " ".join(scenario.clauses)
        _out.print(
            f"{scenario.profile:7} {escape(scenario.name)} [dim]{carried}[/]",
            highlight=False,
            soft_wrap=True,
        )


@app.command("diff")
def compare(
    before: Annotated[pathlib.Path, typer.Argument(help="A report of `run --json`.")],
    after: Annotated[pathlib.Path, typer.Argument(help="Another one.")],
    with_notes: Annotated[
        bool, typer.Option("--notes", help="Also what scenarios measured and noted.")
    ] = False,
) -> None:
    """Compare two runs clause by clause. Exit status 1 when a clause got worse."""
    old, new = document.load(before), document.load(after)
    changes = diff.clauses(old, new)
    for change in changes:
        sign = "[red]-[/]" if change.worse else "[green]+[/]"
        reason = f" {escape(change.reason)}" if change.reason else ""
        _out.print(
            f"{sign} {change.id}: {terminal.styled(change.before)} → "
            f"{terminal.styled(change.after)}{reason}",
            highlight=False,
            soft_wrap=True,
        )
    if with_notes:
        for change in diff.notes(old, new):
            _out.print(
                f"~ {escape(change.id)}\n    {escape(change.before)}\n    {escape(change.after)}",
                highlight=False,
                soft_wrap=True,
            )
    worse = sum(change.worse for change in changes)
    _out.print(f"{len(changes)} clauses differ, {worse} of them for the worse", highlight=False)
    raise typer.Exit(ExitCode.VIOLATED if worse else ExitCode.CONFORMANT)


@app.command("mutants")
def kill_mutants(
    names: Annotated[list[str] | None, typer.Argument(help="Only these.")] = None,
    json_file: _Json = None,
    jobs: _Jobs = 0,
    everything: Annotated[
        bool, typer.Option("--all", help="Run every scenario, not only those of the clause.")
    ] = False,
    clause: Annotated[
        list[str] | None, typer.Option("--clause", help="Only mutants of this clause.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", help="List the killed ones too.")] = False,
) -> None:
    """Run the wrong implementations; each must be caught by a scenario of its clause."""
    layout = Layout.find()
    chosen = [m for m in mutants.load(layout, names or ()) if not clause or m.clause in clause]
    known = catalog.load(layout.program("vmmcts-scenarios"))
    work = {m.name: mutants.job(m, layout, known, everything) for m in chosen}
    jobs_to_run = [job for job in work.values() if job.scenarios]
    for job in jobs_to_run:
        if not pathlib.Path(job.worker.command[-1]).exists() and job.worker.kind == "c":
            raise UsageError(f"{job.worker.command[-1]} is not built: run ci/conformance")
    driver = driver_names.find(layout, driver_names.SOFTCUDA)
    base = mutants.base_jobs(jobs_to_run, manifest.find(layout, "reference"))
    with interruptible(), work_directory() as work_dir:
        runner = Runner(layout, driver, work_dir, parallel=_default_jobs(jobs))
        failing = mutants.failing(runner.run(base))
        total = sum(len(job.scenarios) for job in jobs_to_run)
        with ProgressDisplay(_err, "scenarios over mutants", total, failures=False) as progress:
            done = {d.job.implementation: d for d in runner.run(jobs_to_run, progress)}
    fates = [
        mutants.judge(m, done.get(m.name), failing.get(work[m.name].worker.kind, ()))
        for m in chosen
    ]
    if json_file is not None:
        document.save(json_file, json.dumps(mutants.matrix(fates), indent=1) + "\n")
    for fate in fates:
        if fate.ok and not verbose:
            continue
        killer = next(iter(fate.killers.items()), ("", ""))
        detail = f"by {killer[0]}: {killer[1]}" if fate.ok else fate.reason
        style = "green" if fate.ok else "bold red"
        _out.print(
            f"[{style}]{fate.fate}[/] {fate.mutant.clause} {fate.mutant.name}: {escape(detail)}",
            highlight=False,
            soft_wrap=True,
        )
    failed = sum(not fate.ok for fate in fates)
    _out.print(f"{len(fates)} mutants, {len(fates) - failed} killed, {failed} not", highlight=False)
    raise typer.Exit(ExitCode.VIOLATED if failed else ExitCode.CONFORMANT)


@app.command()
def variants(
    names: Annotated[list[str] | None, typer.Argument(help="Only these variants.")] = None,
    implementation: Annotated[str, typer.Option("--implementation")] = "reference",
    worker: Annotated[
        list[str] | None, typer.Option("--worker", help="Only workers of this name or kind.")
    ] = None,
    jobs: _Jobs = 0,
    listed: Annotated[bool, typer.Option("--list", help="List them and stop.")] = False,
) -> None:
    """Run an implementation over every legal variant of the software driver.

    A clause that a variant makes impossible may stay unexercised; none may be violated.
    """
    known = {variant.name: variant for variant in VARIANTS}
    if unknown := set(names or ()) - set(known):
        raise UsageError(f"no variant {', '.join(sorted(unknown))}: {', '.join(known)}")
    if listed:
        for variant in VARIANTS:
            _out.print(f"{variant.name:22} {variant.text}", highlight=False)
        return
    layout = Layout.find()
    of = manifest.find(layout, implementation)
    suite = Suite.load(layout)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("variant", "verdict", "proven", "violated", "not exercised", "seconds"):
        table.add_column(column)
    worst = ExitCode.CONFORMANT
    for name in names or known:
        driver = driver_names.find(layout, driver_names.SOFTCUDA, name)
        session = Session(layout, suite, of, driver, Selection(kinds=tuple(worker or ())))
        session.check()
        result = _run(session, f"{name}: scenarios", _default_jobs(jobs), None, 1, False)
        if result["exit_code"] not in (ExitCode.CONFORMANT, ExitCode.TOO_LITTLE):
            worst = ExitCode(result["exit_code"]) if worst == ExitCode.CONFORMANT else worst
            terminal.show(result, _out)
        counts = [
            str(sum(profile[key] for profile in result["profiles"].values()))
            for key in ("proven", "violated", "not_exercised")
        ]
        seconds = f"{result['seconds']:.1f}"
        table.add_row(name, terminal.styled(result["verdict"]), *counts, seconds)
    _out.print(table)
    raise typer.Exit(worst)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def trace(
    context: typer.Context,
    file: Annotated[pathlib.Path, typer.Argument(help="A call log.")],
) -> None:
    """Show a call log; --json, --chrome and --oracle choose how."""
    raise typer.Exit(tools.trace(Layout.find(), file, context.args))


@app.command()
def doctor(
    command: Annotated[list[str], typer.Argument(help="-- and a program with its arguments.")],
    driver: _DriverName = driver_names.SOFTCUDA,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the call log.")] = False,
) -> None:
    """Run any program and say what its virtual memory calls did wrong."""
    layout = Layout.find()
    found = driver_names.find(layout, driver)
    raise typer.Exit(tools.doctor(layout, found, command, keep=keep))


def main() -> NoReturn:
    """Run the command line; errors are one line."""
    try:
        status = app(standalone_mode=False)
    except VmmctsError as error:
        _fail(str(error), error.exit_code)
    except Interrupted as interrupted:
        _err.print("interrupted: everything was stopped and removed")
        signal.signal(interrupted.number, signal.SIG_DFL)
        os.kill(os.getpid(), interrupted.number)
        sys.exit(128 + interrupted.number)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _fail(error.format_message(), ExitCode.USAGE)
    sys.exit(int(status or 0))


def _fail(message: str, status: ExitCode) -> NoReturn:
    _err.print(f"vmmcts: {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(int(status))


if __name__ == "__main__":
    main()
