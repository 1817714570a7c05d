"""What an estimate says where no settings help."""

from __future__ import annotations

import pytest

from dsgen.cli.main import main_code

from ..conftest import RECIPES

MUCH_FREE = ("--set", "memory.headroom=99%")
NO_HOST = ("--set", "model=llama-2-70b", "--set", "hardware.host_memory=64GiB")


def said(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    main_code(["estimate", str(RECIPES / "13b-zero2.yaml"), *options])
    return " ".join(capsys.readouterr().out.split())


def test_what_fits_but_never_with_that_headroom(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *MUCH_FREE)
    assert (
        "no settings leave 99% free: it takes more devices or hosts, a smaller model, or less memory.headroom" in text
    )
    assert "make it fit" not in text
    page = said(capsys, *MUCH_FREE, "--format", "html")
    assert "<h2>No settings leave 99 % free</h2>" in page
    assert "a smaller model, or less memory.headroom." in page
    assert "settings make it fit" not in page


def test_what_never_fits(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *NO_HOST)
    assert "no settings make it fit: it takes more devices or hosts, or a smaller model" in text
    assert "memory.headroom" not in text
    page = said(capsys, *NO_HOST, "--format", "html")
    assert "<h2>No settings make it fit</h2>" in page
    assert "<p>It takes more devices or hosts, or a smaller model." in page
