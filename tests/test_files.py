"""Files are replaced as a whole."""

import pytest

from seekling.files import write_atomically


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
