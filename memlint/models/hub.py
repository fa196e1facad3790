"""Fetch a config.json from the Hugging Face hub: bounded in size and time, and one sentence where it fails."""

from __future__ import annotations

import os
import time
from typing import Any, Iterator

from memlint.errors import UserError
from memlint.models.files import MAX_BYTES, UnreadableConfig, parse_config

TIMEOUT_SECONDS = 10.0
"""For the connection, for each read, and for the whole answer."""

INSTALL = "`pip install huggingface_hub`, or add it to `additional_dependencies` of the hook"


class HubError(UserError):
    """Why the hub did not give a config; the sentence names the model and what to do. Never contains a token."""


class NoAnswer(HubError):
    """The hub did not answer in time."""


def offline_by_environment() -> bool:
    """Whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE asks for no network (huggingface_hub constants.py)."""
    return any(
        os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def fetch_config(model_id: str, *, timeout: float = TIMEOUT_SECONDS) -> dict[str, Any]:
    """Return the config of a model on the hub (revision main), as a mapping.

    Endpoint and token come from huggingface_hub's own environment (HF_ENDPOINT, HF_TOKEN, the stored login).
    Raises HubError.
    """
    try:
        from huggingface_hub import get_token, hf_hub_url
        from huggingface_hub.utils import (
            EntryNotFoundError,
            GatedRepoError,
            HfHubHTTPError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
            get_session,
            hf_raise_for_status,
        )
    except ImportError:
        raise HubError(f"asking the hub for `{model_id}` needs huggingface_hub: {INSTALL}") from None
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
    try:
        url = hf_hub_url(model_id, "config.json", endpoint=endpoint)
        # identity: a compressed answer could be a thousand times as large as what was received. Headers of our own:
        # huggingface_hub's build_hf_headers may itself ask the endpoint (2.4, agent harnesses).
        headers = {"Accept-Encoding": "identity", "User-Agent": "memlint"}
        token = get_token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        response, chunks = _open(get_session(), url, headers, timeout)
        try:
            hf_raise_for_status(response)
            content = _bounded(chunks, timeout)
        finally:
            response.close()
        return parse_config(content)
    except GatedRepoError:
        raise HubError(
            f"`{model_id}` is gated: accept its licence on the hub and log in (`hf auth login` or HF_TOKEN),"
            f" or save its config with `memlint models add {model_id} --config config.json`"
        ) from None
    except RepositoryNotFoundError:
        raise HubError(
            f"the hub has no model `{model_id}`, or it is private: check the name or log in (`hf auth login`, HF_TOKEN)"
        ) from None
    except (EntryNotFoundError, RevisionNotFoundError):
        raise HubError(f"`{model_id}` has no config.json on the hub: it is not a transformers checkpoint") from None
    except UnreadableConfig as error:
        raise HubError(f"the hub's answer for `{model_id}` {error}") from None
    except HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        raise HubError(
            f"the hub answered `{model_id}` with HTTP status {status}: try again later, or work offline"
        ) from None
    except TimeoutError:
        raise _no_answer(model_id, timeout) from None
    except Exception as error:  # httpx or requests errors, by version of huggingface_hub: none may become a traceback
        if "timeout" in type(error).__name__.lower():
            raise _no_answer(model_id, timeout) from None
        message = f"the hub cannot be reached for `{model_id}` ({type(error).__name__})"
        raise HubError(f"{message}: {_offline_cure(model_id)}") from None


def _no_answer(model_id: str, timeout: float) -> NoAnswer:
    return NoAnswer(f"the hub did not answer for `{model_id}` within {timeout:g} seconds: {_offline_cure(model_id)}")


def _offline_cure(model_id: str) -> str:
    return f"run `memlint models add {model_id}` once where there is a network"


def _open(session: Any, url: str, headers: dict[str, str], timeout: float) -> tuple[Any, Iterator[bytes]]:
    """Start the download, in pieces as they arrive: with httpx from huggingface_hub 1.0 on, with requests before.

    Both drop the token when a redirect leads to another host.
    """
    if callable(getattr(session, "build_request", None)):
        request = session.build_request("GET", url, headers=headers, timeout=timeout)
        response = session.send(request, stream=True, follow_redirects=True)
        return response, response.iter_bytes()
    response = session.get(url, headers=headers, timeout=timeout, stream=True, allow_redirects=True)
    read = getattr(response.raw, "read1", None)
    # urllib3 before 2.1 cannot give what has arrived: small pieces keep a slow answer within its time.
    return response, iter(lambda: read(65536), b"") if read is not None else response.iter_content(256)


def _bounded(chunks: Iterator[bytes], timeout: float) -> bytes:
    """Read at most MAX_BYTES within ``timeout`` seconds, however slowly the pieces arrive."""
    content = bytearray()
    end = time.monotonic() + timeout
    for chunk in chunks:
        content += chunk
        if len(content) > MAX_BYTES:
            raise UnreadableConfig(f"is larger than {MAX_BYTES >> 20} MiB")
        if time.monotonic() > end:
            raise TimeoutError
    return bytes(content)
