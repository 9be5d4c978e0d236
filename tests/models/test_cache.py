"""Whatever happens while a cache entry is built, a reader sees a whole entry or none."""

from pathlib import Path

import pytest

from seekling.errors import ModelError
from seekling.models.cache import cached_or_built, is_complete, models_folder


def write_two_files(folder: Path) -> dict[str, str]:
    (folder / "config.json").write_text("{}")
    (folder / "sub").mkdir()
    (folder / "sub" / "weights").write_bytes(b"12345")
    return {"source": "a test"}


def must_not_build(folder: Path) -> dict[str, str]:
    raise AssertionError("built again although it was complete")


def test_an_entry_is_built_once(seekling_home: Path):
    first = cached_or_built("m-1", write_two_files, log=print)
    assert first == seekling_home / "models" / "m-1"
    assert cached_or_built("m-1", must_not_build, log=print) == first
    assert (first / "sub" / "weights").read_bytes() == b"12345"


@pytest.mark.parametrize("damage", ["marker missing", "marker cut", "file missing", "file cut"])
def test_a_half_written_entry_is_noticed_and_built_again(seekling_home: Path, damage: str):
    entry = cached_or_built("m-1", write_two_files, log=print)
    if damage == "marker missing":
        (entry / "seekling.json").unlink()
    elif damage == "marker cut":
        (entry / "seekling.json").write_text('{"files": {"con')
    elif damage == "file missing":
        (entry / "config.json").unlink()
    else:
        (entry / "sub" / "weights").write_bytes(b"123")
    (entry / "leftover").write_text("from the damaged one")
    assert not is_complete(entry)

    lines: list[str] = []
    assert cached_or_built("m-1", write_two_files, log=lines.append) == entry
    assert is_complete(entry)
    assert not (entry / "leftover").exists()
    assert lines == [f"the cached model {entry} is half-written or damaged; building it again"]


def test_a_build_that_fails_leaves_nothing_behind(seekling_home: Path):
    def fails(folder: Path) -> dict[str, str]:
        (folder / "config.json").write_text("{}")
        raise ModelError("the download stopped")

    with pytest.raises(ModelError, match="the download stopped"):
        cached_or_built("m-1", fails, log=print)
    assert [path.name for path in models_folder().iterdir()] == [".lock"]


def test_what_a_killed_process_left_is_removed_by_the_next_build(seekling_home: Path):
    stale = seekling_home / "models" / ".m-1.999999999.tmp"
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(b"x" * 100)
    cached_or_built("m-1", write_two_files, log=print)
    assert not stale.exists()


def test_a_cache_that_cannot_be_written_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SEEKLING_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot write the model cache .* SEEKLING_HOME"):
        cached_or_built("m-1", write_two_files, log=print)
