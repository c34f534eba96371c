import collections
import fnmatch
import pathlib
import re

import pytest

from vmmcts import clauses
from vmmcts.errors import UsageError
from vmmcts.layout import Layout
from vmmcts.tests.conftest import SOURCE

DIRECTORY = Layout.find().clauses
TRUTH = SOURCE / "reference/softcuda/truth/h200-580.159.04.jsonl"


def test_every_clause_is_well_formed() -> None:
    known = clauses.load(DIRECTORY)
    assert {c.area.lower() for c in known.values()} == {p.stem for p in DIRECTORY.glob("*.toml")}
    assert all(c.text.endswith((".", "?", ".)")) for c in known.values())
    assert all(c.level != "O" or c.profile == "driver" for c in known.values())


def test_numbers_of_an_area_have_no_gap() -> None:
    numbers = collections.defaultdict(list)
    for clause in clauses.load(DIRECTORY).values():
        numbers[clause.area].append(int(clause.id[-2:]))
    for area, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), area


def test_every_fact_that_a_clause_names_was_measured() -> None:
    facts = set(re.findall(r'^\{"id":"([^"]+)"', TRUTH.read_text(), re.MULTILINE))
    assert len(facts) > 400
    for clause in clauses.load(DIRECTORY).values():
        for pattern in clause.facts:
            assert fnmatch.filter(facts, pattern), f"{clause.id}: {pattern} matches no fact"


GOOD = 'id = "RES-01"\nlevel = "M"\nprofile = "core"\ntext = "t."\nsource = "s"\n'


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("RES-01", "RES-1"), "AREA-NN"),
        (('"M"', '"X"'), "level is one of"),
        (('"core"', '"gpu"'), "profile one of"),
        (('"t."', '"  "'), "not empty"),
        (('source = "s"', ""), "no source"),
        (('source = "s"', 'source = "s"\nextra = 1'), "unknown keys extra"),
        (("RES-01", "EXP-01"), "belongs in exp.toml"),
    ],
)
def test_what_is_malformed_is_named(
    tmp_path: pathlib.Path, change: tuple[str, str], problem: str
) -> None:
    (tmp_path / "res.toml").write_text("[[clause]]\n" + GOOD.replace(*change))
    with pytest.raises(UsageError, match=problem):
        clauses.load(tmp_path)


def test_an_id_is_there_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "res.toml").write_text(f"[[clause]]\n{GOOD}[[clause]]\n{GOOD}")
    with pytest.raises(UsageError, match="each once"):
        clauses.load(tmp_path)
