"""The page and the charts: complete, self-contained, safe against what configs say, and drawn by a real browser."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from memlint.__main__ import main

LARGE = """\
memlint: 1
model: meta-llama/Llama-3.1-8B
training: {micro_batch_size: 4, sequence_length: 4096, precision: bf16}
hardware: {target: A100-80GB}
"""
SMALL = """\
memlint: 1
model: Qwen/Qwen2.5-0.5B
training: {sequence_length: 512}
hardware: {target: rtx4090}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "large.yaml").write_text(LARGE)
    (tmp_path / "small <b>.yaml").write_text(SMALL)
    (tmp_path / "workflow.yml").write_text("on: [push]\njobs: {}\n")
    (tmp_path / "unknown.yaml").write_text("memlint: 1\nmodel: nobody/has-this\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def page(project: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", ".", "--html", "page.html", "--offline"]) == 0
    assert "drew 2 jobs: page.html" in capsys.readouterr().out
    return (project / "page.html").read_text(encoding="utf-8")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data", "xlink:href")]


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    tags = _Tags()
    tags.feed(page)
    assert tags.links == []
    assert not {"script", "link", "img", "iframe"} & set(tags.names)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_every_job_has_its_charts_and_the_rest_a_reason(page: str) -> None:
    assert page.count("<section>") == 3
    assert page.count('aria-label="peak of each phase') == 2
    assert page.count('aria-label="predicted peak over micro batch') == 2
    assert "Plans, best first" in page
    assert "nobody/has-this" in page
    assert "workflow" not in page


def test_a_companion_is_a_gap_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("memlint: 1\nmodel: Qwen/Qwen3-0.6B\n")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}')
    assert main(["report", ".", "--html", "out.html", "--offline"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["report", "job.yaml", "ds.json", "--html", "out.html", "--offline"]) == 0
    assert capsys.readouterr().err.count("ds.json") == 1


def test_names_from_configs_are_escaped(page: str) -> None:
    assert "small &lt;b&gt;.yaml" in page
    assert "<b>" not in page


def test_what_to_write_must_be_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "."]) == 2
    assert "--html FILE" in capsys.readouterr().err
    assert main(["report", "workflow.yml", "--html", "x.html"]) == 2
    assert not (project / "x.html").exists()


def test_charts_as_files(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    assert main(["report", "small <b>.yaml", "--png", "charts", "--svg", "charts", "--offline"]) == 0
    files = sorted(path.name for path in (project / "charts").iterdir())
    assert [name.rpartition(".")[2] for name in files].count("png") == 3
    assert (project / "charts" / "peaks.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<svg" in (project / "charts" / "peaks.svg").read_text()


def test_dollars_in_a_name_are_no_formula(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    (project / r"a$\frac$.yaml").write_text(SMALL)
    assert main(["report", r"a$\frac$.yaml", "--png", "charts", "--offline"]) == 0


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no headless Chromium on this machine (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [390, 900])
def test_a_browser_draws_it_on_a_phone_and_on_a_desk(page: str, project: Path, width: int) -> None:
    assert BROWSER is not None
    common = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    common += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    common += [f"--user-data-dir={project / 'profile'}", f"--window-size={width},1400"]
    address = (project / "page.html").as_uri()
    subprocess.run(
        [*common, "--screenshot=shot.png", address], cwd=project, capture_output=True, timeout=120, check=True
    )
    shot = (project / "shot.png").read_bytes()
    assert struct.unpack(">I", shot[16:20])[0] == width
    assert len(set(shot[2000:6000])) > 50, "an empty page compresses to almost nothing"
    dom = subprocess.run([*common, "--dump-dom", address], cwd=project, capture_output=True, timeout=120, check=True)
    assert dom.stdout.decode().count("<svg") == page.count("<svg")
    subprocess.run(
        [*common, "--print-to-pdf=page.pdf", address], cwd=project, capture_output=True, timeout=120, check=True
    )
    assert (project / "page.pdf").read_bytes()[:5] == b"%PDF-"
