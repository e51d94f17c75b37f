from __future__ import annotations

import os

import pytest

from core.run.atomic import atomic_write


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    atomic_write(path, "old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_gets_the_permissions_of_any_new_file(tmp_path):
    atomic_write(tmp_path / "a", b"1", durable=False)
    (tmp_path / "b").write_bytes(b"1")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
