"""What the tests share."""

import pathlib

import pytest


@pytest.fixture
def address(tmp_path: pathlib.Path) -> str:
    """A fresh unix address. (A socket's path has at most 107 bytes.)"""
    return f"unix:{tmp_path}/s"
