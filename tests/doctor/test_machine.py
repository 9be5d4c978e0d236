"""What /proc, cgroups and model files say, read from texts as such machines write them."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seekling import cores
from seekling.cores import usable_cores, use_cores_here
from seekling.doctor import machine as machine_module
from seekling.doctor.machine import (
    busy_seconds,
    look_at_machine,
    measure_speed,
    memory_of,
    number_or_none,
    processor_features,
    processor_name,
    used_of,
)
from seekling.doctor.shape import SMOLLM2_135M, read_model_shape
from seekling.errors import ModelError

INTEL = (
    "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) 8481C\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n"
)
ARM = "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: fp asimd bf16 i8mm\n"


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


def test_instruction_sets_that_matter_are_picked_out():
    assert processor_features(INTEL) == ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")
    assert processor_features(ARM) == ("bf16", "asimd")
    assert processor_features("") == ()
    assert processor_name(INTEL) == "Intel(R) Xeon(R) 8481C"
    assert processor_name(ARM) == ""


def test_memory_is_read_in_bytes():
    assert memory_of("MemTotal:       16000 kB\nMemFree: 1 kB\nMemAvailable:    9000 kB\n") == (16_384_000, 9_216_000)
    assert memory_of("") == (None, None)
    assert number_or_none("max\n") is None
    assert number_or_none("1024\n") == 1024


STAT = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 10 30 5000 70 1 2 7 0 0\ncpu1 400 0 0 6000 0 0 0 0 0 0\nintr 5 cpu0\n"


def test_busy_is_all_but_idle_on_the_cores_that_may_be_used():
    tick = os.sysconf("SC_CLK_TCK")
    assert busy_seconds(STAT, [0]) == 150 / tick  # waiting for a disk is idle; what a hypervisor took is not
    assert busy_seconds(STAT, [0, 1]) == 550 / tick
    assert busy_seconds("", [0]) == 0.0


def test_other_processes_that_keep_the_machine_busy_are_noticed():
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        speed = measure_speed(rows=64, inner=64, columns=64, seconds=0.2)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert speed.is_machine_busy
    assert speed.cores_of_others > 0.15 * speed.num_threads
    assert not dataclasses.replace(speed, cores_of_others=0.1 * speed.num_threads).is_machine_busy


def test_pages_of_files_that_a_container_has_read_are_not_used_up():
    assert used_of("3000\n", "anon 1000\ninactive_file 1500\nactive_file 500\n") == 1500
    assert used_of("3000\n", "") == 3000
    assert used_of("", "inactive_file 1500\n") == 0


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


def test_speed_is_measured_in_operations_per_second():
    speed = measure_speed(rows=16, inner=64, columns=64, seconds=0.01)
    assert 1e6 < speed.float32_flops < 1e15
    assert 1e6 < speed.memory_bytes_per_s < 1e13


def test_a_models_size_is_read_without_loading_it(tiny_model_dir: Path):
    shape = read_model_shape(tiny_model_dir)
    # Per layer: two norms, q and o 64x64, k and v 32x64, three products of 64x128; then the last norm and the table.
    layer = 2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128
    assert shape.num_body_parameters == 2 * layer + 64
    assert shape.num_parameters == shape.num_body_parameters + shape.vocabulary * 64
    assert shape.cache_values_per_token == 2 * 2 * 2 * 16
    assert (shape.attention, shape.intermediate) == (4 * 16, 128)


@pytest.mark.real
def test_the_default_models_size_is_known_before_it_is_fetched(real_model_dir: Path):
    assert read_model_shape(real_model_dir) == SMOLLM2_135M


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
