"""The checks of ci/: each is shown what it has to find."""

import importlib.util
import pathlib
import subprocess
from types import ModuleType

import pytest

from vmmcts.clauses import Clause
from vmmcts.tests.conftest import SOURCE


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, SOURCE / path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


layers = module("ci/checks/layers.py")
traceability = module("ci/checks/traceability.py")
documents = module("ci/checks/documents.py")
figures = module("coverage/figures.py")


def test_the_project_keeps_its_layers() -> None:
    assert list(layers.problems(SOURCE)) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("reference/vmm/a.cpp", '#include "vmmcts/implementation.h"\n'),
        ("reference/vmm/a.hpp", '#include "softcuda/books.hpp"\n'),
        ("reference/vmm/b.cpp", 'const char* name = "softcuda";\n'),
        ("reference/python/a.py", "from vmmcts.worker import main\n"),
        ("reference/softcuda/a.cpp", '#include "vmm/resource.hpp"\n'),
        ("reference/softcuda/b.cpp", "  # include <coordinator/plan.hpp>\n"),
        ("reference/softcuda/a.py", "    import vmmref\n"),
        ("conformance/coordinator/a.cpp", "#include <cuda.h>\n"),
        ("conformance/coordinator/b.cpp", 'void* d = dlopen("libcuda.so.1", 2);\n'),
        ("scenarios/a.cpp", '#include "worker/server.hpp"\n'),
        ("scenarios/b.cpp", "auto* d = dlopen(name, 2);\n"),
        ("conformance/vmmcts/worker/a.py", "import vmmref\n"),
    ],
)
def test_a_layer_that_knows_too_much_is_found(tmp_path: pathlib.Path, path: str, text: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("// libcuda softcuda\n" * path.endswith("pp"))
    assert list(layers.problems(tmp_path)) == []
    (tmp_path / path).write_text(text)
    (problem,) = layers.problems(tmp_path)
    assert problem.startswith(path)


KNOWN = {
    "A-01": Clause("A-01", "M", "core", "t", "s"),
    "R-01": Clause("R-01", "M", "rawfd", "t", "s"),
}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('VMMCTS_SCENARIO("core", "name", "[A-01]") {', None),
        ('VMMCTS_SCENARIO("rawfd", "a"\n    " b",\n  "[A-01][R-01]") {', None),
        ('VMMCTS_SCENARIO("core", "canary", "") {', None),
        ('VMMCTS_SCENARIO("core", "name", "[A-99]") {', "no clause A-99"),
        ('VMMCTS_SCENARIO("core", "name", "[R-01]") {', "R-01 is of profile rawfd"),
        ("VMMCTS_SCENARIO(profile, name, clauses) {", "cannot be read"),
    ],
)
def test_a_scenario_names_clauses_that_exist(text: str, problem: str | None) -> None:
    found = list(traceability.scenario_problems("f.cpp", text, KNOWN, set()))
    if problem is None:
        assert found == []
    else:
        assert len(found) == 1 and problem in found[0]


def test_the_documents_of_the_project_are_true() -> None:
    assert list(documents.problems(SOURCE)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```sh\nci/go --fast\n```", None),
        ("```sh\nX=1 ci/go\n```", None),
        ("see `ci/go` and `build/x` and `folder/*.txt`", None),
        ("```sh\nci/went\n```", "no script ci/went"),
        ("```console\n$ ci/go --slow\nci/went\n```", "no option --slow"),
        ("see `ci/went`", "no path ci/went"),
        ("see [it](gone.md)", "no file behind the link gone.md"),
        ('```sh\nci/go "\n```', "cannot be read"),
    ],
)
def test_a_document_names_what_is_there(
    tmp_path: pathlib.Path, text: str, problem: str | None
) -> None:
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "go").write_text("#!/bin/sh\necho --fast --help\n")
    (tmp_path / "ci" / "go").chmod(0o755)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").touch()
    (tmp_path / "README.md").write_text(text)
    found = list(documents.problems(tmp_path))
    if problem is None:
        assert found == []
    else:
        assert len(found) == 1 and problem in found[0]


TRACE = """SF:/x/reference/vmm/a.cpp
LF:10
LH:9
BRF:4
BRH:2
end_of_record
"""


def test_coverage_is_held_to_its_floors() -> None:
    found = figures.read(TRACE)
    assert found["reference/vmm"].percentages() == (90.0, 50.0)
    assert figures.problems(found, "reference/vmm 90 50 # fine\n") == []
    assert len(figures.problems(found, "reference/vmm 91 51\n")) == 2
    assert figures.problems(found, "reference/gone 1 1\n") == ["reference/gone: no figures"]


@pytest.mark.parametrize("script", sorted(p.name for p in (SOURCE / "ci").iterdir()
                                          if p.is_file() and p.suffix == ""))  # fmt: skip
def test_every_script_has_help_and_refuses_what_it_does_not_know(script: str) -> None:
    path = str(SOURCE / "ci" / script)
    done = subprocess.run([path, "--help"], text=True, capture_output=True, check=False)
    assert done.returncode == 0 and done.stdout.strip()
    if script not in ("vmmcts", "conformance", "gpu"):
        bad = subprocess.run([path, "--bad"], text=True, capture_output=True, check=False)
        assert bad.returncode == 2 and len(bad.stderr.splitlines()) == 1
