"""Where things stand: the cache, and paths as recipes say them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgen.resources import cache_folder, config_folder, local_path


def test_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/a")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("DSGEN_CACHE_DIR", raising=False)
    assert cache_folder("tokens") == Path("/home/a/.cache/dsgen/tokens")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder("tokens") == Path("/xdg/dsgen/tokens")
    monkeypatch.setenv("DSGEN_CACHE_DIR", "~/own")
    assert cache_folder("tokens") == Path("/home/a/own/tokens")
    monkeypatch.setenv("DSGEN_CACHE_DIR", "here")
    assert cache_folder("tokens") == tmp_path / "here" / "tokens"
    monkeypatch.setenv("DSGEN_CACHE_DIR", "~no-such-user/a")
    with pytest.raises(OSError, match="~no-such-user/a leads nowhere"):
        cache_folder("tokens")


def test_paths_of_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/a")
    folder = Path("/recipes")
    assert local_path(folder, "a/b") == Path("/recipes/a/b")
    assert local_path(folder, "/a/b") == Path("/a/b")
    assert local_path(folder, "~/b") == Path("/home/a/b")
    assert local_path(folder, "~no-such-user/b") == Path("/recipes/~no-such-user/b")


def test_config_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_folder("profiles") == tmp_path / "dsgen" / "profiles"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert config_folder("profiles") == tmp_path / "home" / ".config" / "dsgen" / "profiles"
