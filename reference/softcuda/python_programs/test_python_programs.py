"""cuda.core and cuda.bindings from PyPI, unmodified, on the software driver.

What these runs found in those packages is in SOFTCUDA.md, "What real programs showed".
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Run

MIB = 1 << 20


def test_device_query_shows_the_simulated_device(run: Run) -> None:
    lines = run("device_query.py").splitlines()
    assert lines[0] == "name NVIDIA H200"
    assert lines[1] == "capability 9.0"
    assert lines[3:] == ["vmm True", "posix_fd True", "pools True"]


def test_virtual_memory_is_allocated_grown_and_freed(run: Run) -> None:
    lines = run("virtual_memory.py", str(4 * MIB), str(10 * MIB)).splitlines()
    assert lines[0] == f"size {4 * MIB} used {4 * MIB}"
    assert lines[1] == f"grown {10 * MIB} used {10 * MIB}"
    assert lines[2] == "equal True"


def test_closing_a_buffer_leaks_its_memory_in_cuda_core(run: Run) -> None:
    """A defect of cuda.core 1.2.2: deallocate retains the handle once more than it releases."""
    assert f"leaked {4 * MIB}" in run("virtual_memory.py", str(4 * MIB), str(4 * MIB))


def test_growing_to_a_part_of_a_unit_leaks_in_cuda_core(run: Run) -> None:
    """A defect of cuda.core 1.2.2: the grown buffer records the size that was asked for."""
    output = run("virtual_memory.py", str(3 * MIB), str(9 * MIB))
    assert f"grown {9 * MIB} used {10 * MIB}" in output
    assert f"leaked {10 * MIB}" in output


def test_a_pool_buffer_reaches_another_process_and_back(run: Run) -> None:
    output = run("pool_ipc.py")
    assert "child True 4096 [7, 7, 7, 7]" in output
    assert "exit 0 parent [9, 9, 9, 9]" in output


def test_an_allocation_is_shared_by_fd_with_cuda_bindings(run: Run) -> None:
    output = run("vmm_ipc.py")
    assert "importer reads 17" in output
    assert "exporter reads 34 importer exit 0" in output


def test_what_is_not_modelled_says_so_once_by_name(run: Run, tmp_path: Path) -> None:
    assert run("not_modelled.py").split() == ["CUDA_ERROR_NOT_SUPPORTED"] * 2
    log = (tmp_path / "log").read_text()
    assert log.count("cuModuleLoadData: not modelled") == 1
    assert log.count("cuArrayCreate_v2: not modelled") == 1


@pytest.mark.parametrize(
    "variant",
    [
        "granularity-64k",
        "granularity-16m",
        "hints-never",
        "hints-always",
        "handles-reused",
        "handles-never-reused",
        "addresses-descending",
        "fds-inherited",
        "other-errors",
        "slow-calls",
    ],
)
def test_programs_run_on_every_legal_variant(run: Run, variant: str) -> None:
    assert "equal True" in run(
        "virtual_memory.py", str(16 * MIB), str(48 * MIB), SOFTCUDA_VARIANT=variant
    )


def test_several_devices(run: Run) -> None:
    assert "name NVIDIA H200" in run("device_query.py", SOFTCUDA_PROFILE="h200x2")
    assert os.environ.get("SOFTCUDA_PROFILE") is None
