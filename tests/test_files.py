"""Files and folders are replaced as a whole."""

import errno
import os

import pytest

from seekling.files import read_appended, remove_leftovers, replacing, write_atomically


def test_a_write_replaces_the_content_and_makes_the_folder(tmp_path):
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, "before")
    write_atomically(path, "after \u2028")
    assert path.read_text(encoding="utf-8") == "after \u2028"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_keeps_the_old_content_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "file.txt"
    write_atomically(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "after \ud800")
    assert path.read_text(encoding="utf-8") == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_with_all_that_was_in_it(tmp_path):
    path = tmp_path / "new" / "folder"
    for name in ("before", "after"):
        with replacing(path) as temporary:
            temporary.mkdir()
            (temporary / name).write_text(name, encoding="utf-8")
            assert temporary.parent == path.parent
    assert [file.name for file in path.iterdir()] == ["after"]
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_could_not_be_filled_leaves_the_old_one(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "before").touch()

    def fill():
        with replacing(path) as temporary:
            temporary.mkdir()
            (temporary / "after").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill()
    assert [file.name for file in path.iterdir()] == ["before"]
    assert list(tmp_path.iterdir()) == [path]


def test_an_old_folder_that_cannot_be_removed_is_no_failure(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    for name in ("before", "after", "last"):
        with replacing(path) as temporary:
            temporary.mkdir()
            (temporary / name).touch()
            (temporary / "used").mkdir()
            monkeypatch.setattr(os, "rmdir", fail)
        monkeypatch.undo()
    assert sorted(file.name for file in path.iterdir()) == ["last", "used"]
    assert len(list(tmp_path.iterdir())) == 3
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def fail(*_, **__):
    raise OSError(errno.EBUSY, "busy")


def test_a_folder_that_cannot_be_replaced_is_put_back(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "before").touch()

    def replace():
        with replacing(path):  # nothing was written that could take its place
            pass

    with pytest.raises(FileNotFoundError):
        replace()
    assert [file.name for file in path.iterdir()] == ["before"]
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_processes_left_is_removed_and_what_others_write_stays(tmp_path):
    running, own = f".a.txt.{os.getppid()}.tmp", "b.txt.999999999.tmp"
    (tmp_path / ".a.txt.999999999.tmp").touch()
    (tmp_path / ".folder.999999999.tmp").mkdir()
    (tmp_path / ".folder.999999999.tmp" / "file").touch()
    for name in (running, own, ".hidden", ".odd.tmp"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {running, own, ".hidden", ".odd.tmp"}


def test_a_line_that_a_kill_cut_short_swallows_none_that_comes_after_it(tmp_path):
    path = tmp_path / "log"
    assert read_appended(path) == []
    path.write_bytes(b"one\ntw\xff")
    assert read_appended(path) == ["one", "tw\ufffd"]
    with path.open("a") as file:
        file.write("three\n")
    assert read_appended(path) == ["one", "tw\ufffd", "three", ""]
