"""What /proc, cgroups and model files say, read from texts as such machines write them."""

import shutil
from pathlib import Path

import pytest
import torch

from seekling import cores
from seekling.cores import usable_cores, use_cores_here
from seekling.doctor import machine as machine_module
from seekling.doctor.machine import (
    look_at_machine,
)
from seekling.doctor.shape import read_model_shape
from seekling.errors import ModelError


@pytest.mark.parametrize(
    ("mine", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8.0),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "1600000 100000\n"}, 8.0),
        ("", {"cpu.max": "150000 100000\n"}, 8.0),
        ("0::/user/service\n", {"user/service/cpu.max": "max 100000", "user/cpu.max": "300000 100000"}, 3.0),
        ("0::/docker/ab\n", {"cpu.max": "250000 100000"}, 2.5),  # a container that sees its own group as the root
        ("4:memory:/\n1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        (
            "3:cpuset:/\n2:cpu,cpuacct:/docker/ab\n0::/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "200000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            2.0,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8.0),
    ],
)
def test_a_containers_quota_limits_the_cores(mine: str, files: dict[str, str], expected: float, tmp_path: Path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(8, mine, tmp_path) == expected


def test_torch_starts_no_more_threads_than_a_container_may_use(monkeypatch: pytest.MonkeyPatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(6)
        monkeypatch.setattr(cores, "cores_here", lambda: 2.5)
        use_cores_here()
        assert torch.get_num_threads() == 3
        monkeypatch.setattr(cores, "cores_here", lambda: 8.0)
        use_cores_here()
        assert torch.get_num_threads() == 3, "who set fewer, as by OMP_NUM_THREADS, keeps them"
    finally:
        torch.set_num_threads(before)


def test_a_containers_limit_counts_with_what_it_cannot_give_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_module, "_CGROUP", tmp_path)
    for name, text in (("max", "9000000"), ("current", "8000000"), ("stat", "anon 1\ninactive_file 3000000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    machine = look_at_machine(tmp_path)
    assert (machine.memory_bytes, machine.available_bytes) == (9_000_000, 4_000_000)


def test_this_machine_can_be_looked_at_even_before_its_cache_folder_exists(tmp_path: Path):
    machine = look_at_machine(tmp_path / "not" / "there")
    assert machine.num_cores > 0
    assert machine.cache_free_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert not (tmp_path / "not").exists()


def test_a_models_size_is_read_without_loading_it(tiny_model_dir: Path):
    shape = read_model_shape(tiny_model_dir)
    # Per layer: two norms, q and o 64x64, k and v 32x64, three products of 64x128; then the last norm and the table.
    layer = 2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128
    assert shape.num_body_parameters == 2 * layer + 64
    assert shape.num_parameters == shape.num_body_parameters + shape.vocabulary * 64
    assert shape.cache_values_per_token == 2 * 2 * 2 * 16
    assert (shape.attention, shape.intermediate) == (4 * 16, 128)


@pytest.mark.parametrize("damage", ["config", "weights", "no weights"])
def test_damaged_files_are_one_clear_error(tiny_model_dir: Path, tmp_path: Path, damage: str):
    model = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    if damage == "config":
        (model / "config.json").write_text('{"hidden_size": 64}')
    elif damage == "weights":
        (model / "model.safetensors").write_bytes(b"\x40\x00\x00\x00\x00\x00\x00\x00{")
    else:
        (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"does not describe|not a readable safetensors|no \*\.safetensors"):
        read_model_shape(model)
