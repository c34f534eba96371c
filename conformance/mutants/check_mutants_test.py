"""The check of mutants.toml finds what it is for."""

from __future__ import annotations

from typing import Any

from mutants import check_mutants


def _mutant(**changes: Any) -> dict[str, Any]:
    known = min(check_mutants.registered()["table"])
    return {
        "name": known,
        "kind": "table",
        "breaks": ["A-01"],
        "subtle": False,
        "description": "It is wrong.",
        **changes,
    }


_CLAUSES = [
    {"id": "A-01", "level": "M", "profile": "core"},
    {"id": "A-02", "level": "M", "profile": "core"},
    {"id": "A-03", "level": "S", "profile": "core"},
    {"id": "D-01", "level": "M", "profile": "driver"},
]


def test_the_list_is_in_order() -> None:
    assert check_mutants.problems() == []


def test_a_name_that_nobody_registered_is_found() -> None:
    found = list(check_mutants.registry_problems([_mutant(name="no_such_mutant")]))
    assert "no_such_mutant: no table mutant has this name" in found


def test_a_mutant_that_is_not_listed_is_found() -> None:
    listed = _mutant()
    found = list(check_mutants.registry_problems([listed]))
    assert f"{listed['name']}: a table mutant that mutants.toml does not list" not in found
    assert sum("does not list" in problem for problem in found) > 100


def test_a_clause_without_mutant_is_found() -> None:
    found = list(check_mutants.clause_problems([_mutant()], [], _CLAUSES))
    assert found == ["A-02: no mutant breaks it"]
    assert not list(check_mutants.clause_problems([_mutant()], ["A-02"], _CLAUSES))


def test_a_clause_that_does_not_exist_is_found() -> None:
    mutant = _mutant(breaks=["A-01", "B-01"])
    found = list(check_mutants.clause_problems([mutant], ["A-02"], _CLAUSES))
    assert found == [f"{mutant['name']}: no clause B-01"]
