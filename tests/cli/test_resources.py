"""Schemas are found from a checkout and from an installed wheel alike."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from memlint.resources import schema_names, schema_path

ROOT = Path(__file__).parents[2]


def test_a_checkout_finds_them_beside_the_package():
    assert Path(schema_path("settings")).samefile(ROOT / "schemas" / "settings.schema.json")
    assert "report" in schema_names()


def test_a_wheel_finds_them_inside_the_package(tmp_path):
    """The layout that pyproject.toml gives a wheel: ``schemas`` becomes ``memlint/_schemas``."""
    shutil.copytree(ROOT / "memlint", tmp_path / "memlint", ignore=shutil.ignore_patterns("__pycache__", "measure"))
    shutil.copytree(ROOT / "schemas", tmp_path / "memlint" / "_schemas")
    result = subprocess.run(
        [sys.executable, "-m", "memlint", "schema"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == schema_names()
