"""The hub, spoken to over real HTTP on the loopback: what it may answer, and what the user then reads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("huggingface_hub", reason="needs the hub extra")

from memlint.models import hub
from memlint.models import resolve as resolve_module
from memlint.models.hub import HubError, fetch_config
from memlint.models.resolve import resolve_model

TOKEN = "hf_secretsecretsecretsecret"
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


class Handler(BaseHTTPRequestHandler):
    """Answers ``/ORG/NAME/resolve/main/config.json`` by the name of the model, with the hub's own error headers."""

    seen: ClassVar[list[tuple[str, str | None]]] = []
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        name = self.path.split("/")[2] if self.path.count("/") > 1 else self.path.strip("/")
        answer = getattr(self, f"answer_{name}", None)
        if answer is None:
            self.send(404, b"", {"X-Error-Code": "RepoNotFound"})
        else:
            answer()

    do_HEAD = do_GET

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_good(self) -> None:
        self.send(200, json.dumps(CONFIG).encode())

    def answer_gated(self) -> None:
        self.send(
            403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model org/gated is restricted."}
        )

    def answer_login(self) -> None:
        self.send(401, b"", {"X-Error-Code": "GatedRepo"})

    def answer_private(self) -> None:
        self.send(401, b"Invalid username or password.", {"X-Error-Code": "RepoNotFound"})

    def answer_weights(self) -> None:
        self.send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def answer_broken(self) -> None:
        self.send(200, b"<html>maintenance</html>")

    def answer_listed(self) -> None:
        self.send(200, b"[1, 2, 3]")

    def answer_down(self) -> None:
        self.send(503, b"try later")

    def answer_unsound(self) -> None:
        self.send(200, json.dumps({**CONFIG, "hidden_size": -4}).encode())

    def answer_moved(self) -> None:
        self.send(307, b"", {"Location": "/org/good/resolve/main/config.json"})

    def answer_circling(self) -> None:
        self.send(302, b"", {"Location": self.path})

    def answer_elsewhere(self) -> None:
        self.send(302, b"", {"Location": f"{OTHER[0]}/org/good/resolve/main/config.json"})

    def answer_giant(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(4096):
                self.wfile.write(b"[" * 65536)
        except OSError:
            GIANT_STOPPED.set()

    def answer_silent(self) -> None:
        time.sleep(5)

    def answer_dripping(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(100):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        except OSError:
            pass

    def log_message(self, format: str, *args: Any) -> None:
        pass


OTHER: list[str] = []
GIANT_STOPPED = threading.Event()


def _serve(handler: type[BaseHTTPRequestHandler]) -> tuple[ThreadingHTTPServer, str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server, address = _serve(Handler)
    other, OTHER[:] = (lambda pair: (pair[0], [pair[1].replace("127.0.0.1", "localhost")]))(_serve(Handler))
    yield address
    server.shutdown()
    server.server_close()
    other.shutdown()
    other.server_close()


@pytest.fixture(autouse=True)
def _hub(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(resolve_module, "_FETCHED", {})
    monkeypatch.setattr(resolve_module, "_SILENT", [])
    Handler.seen.clear()


def refusal(name: str, timeout: float = 5.0) -> str:
    with pytest.raises(HubError) as caught:
        fetch_config(f"org/{name}", timeout=timeout)
    message = str(caught.value)
    assert TOKEN not in message
    assert f"org/{name}" in message
    assert "\n" not in message
    return message


def test_a_config_is_fetched_with_the_token_from_the_endpoint() -> None:
    assert fetch_config("org/good") == CONFIG
    assert Handler.seen == [("/org/good/resolve/main/config.json", f"Bearer {TOKEN}")]


def test_the_hub_is_the_last_source_and_is_asked_once(tmp_path: Path) -> None:
    for _ in range(2):
        found = resolve_model(
            "org/good", base_dir=str(tmp_path), settings_models={}, search_root=str(tmp_path), offline=False
        )
        assert found.architecture is not None
        assert (found.architecture.source, found.architecture.id) == ("hub", "org/good")
    assert len(Handler.seen) == 1


def test_a_model_of_the_catalog_needs_no_hub(tmp_path: Path) -> None:
    found = resolve_model(
        "Qwen/Qwen3-8B", base_dir=str(tmp_path), settings_models={}, search_root=str(tmp_path), offline=False
    )
    assert found.architecture is not None
    assert found.architecture.source == "catalog"
    assert Handler.seen == []


def test_an_unsound_answer_is_a_reason_with_its_problem(tmp_path: Path) -> None:
    found = resolve_model(
        "org/unsound", base_dir=str(tmp_path), settings_models={}, search_root=str(tmp_path), offline=False
    )
    assert found.architecture is None
    assert [problem.key for problem in found.problems] == [("hidden_size",)]


@pytest.mark.parametrize("name", ["gated", "login"])
def test_a_gated_model_asks_for_licence_and_login(name: str) -> None:
    message = refusal(name)
    assert "is gated" in message
    assert "HF_TOKEN" in message


@pytest.mark.parametrize("name", ["private", "absent"])
def test_a_model_that_is_missing_or_private(name: str) -> None:
    assert "has no model" in refusal(name)


def test_a_repository_without_config() -> None:
    assert "has no config.json" in refusal("weights")


def test_an_answer_that_is_no_json() -> None:
    assert "is not JSON" in refusal("broken")


def test_an_answer_that_is_no_mapping() -> None:
    assert "is not a JSON mapping" in refusal("listed")


def test_a_server_in_trouble() -> None:
    assert "HTTP status 503" in refusal("down")


def test_a_redirect_is_followed() -> None:
    assert fetch_config("org/moved") == CONFIG


def test_a_redirect_to_another_host_does_not_carry_the_token() -> None:
    assert fetch_config("org/elsewhere") == CONFIG
    assert [token for _, token in Handler.seen] == [f"Bearer {TOKEN}", None]


def test_a_circle_of_redirects_ends() -> None:
    assert "cannot be reached" in refusal("circling")


def test_a_giant_body_is_cut_off() -> None:
    assert "is larger than 4 MiB" in refusal("giant")
    assert GIANT_STOPPED.wait(5)


@pytest.mark.parametrize("name", ["silent", "dripping"])
def test_a_slow_hub_is_given_up(name: str) -> None:
    start = time.monotonic()
    assert "did not answer" in refusal(name, timeout=0.5)
    assert time.monotonic() - start < 3


def test_a_slow_hub_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch_config", lambda model_id: fetch_config(model_id, timeout=0.3))
    asked = len(Handler.seen)
    first, second = (
        resolve_model(name, base_dir=str(tmp_path), settings_models={}, search_root=str(tmp_path), offline=False)
        for name in ("org/silent", "org/good")
    )
    assert "did not answer for `org/silent`" in (first.reason or "")
    assert "`org/good` is not known offline" in (second.reason or "") and "is not asked" in (second.reason or "")
    assert len(Handler.seen) == asked + 1


def test_no_hub_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    message = refusal("good")
    assert "cannot be reached" in message
    assert "memlint models add org/good" in message


def test_a_suggestion_follows_a_name_the_hub_does_not_have(tmp_path: Path) -> None:
    found = resolve_model(
        "Qwen/Qwen3-8BB", base_dir=str(tmp_path), settings_models={}, search_root=str(tmp_path), offline=False
    )
    assert found.reason is not None
    assert "did you mean `Qwen/Qwen3-8B`" in found.reason


def test_without_huggingface_hub_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match="pip install huggingface_hub"):
        fetch_config("org/good")


def test_importing_the_module_does_not_import_huggingface_hub() -> None:
    import subprocess
    import sys

    code = "import sys, memlint.models.hub; print('huggingface_hub' in sys.modules)"
    assert hub.TIMEOUT_SECONDS <= 10
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )
