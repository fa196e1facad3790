"""List the models whose shape is known, or save a model's config beside the project.

memlint models [WORD ...]       the catalog and the saved configs whose ID contains every WORD
memlint models add ID [ID ...]  save configs in .memlint/models, from the HF cache or the hub; works offline afterwards
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from memlint.errors import UserError
from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

MAX_ADDED = 100
"""IDs in one call of ``add``: each may be a request to the hub."""


def configure(parser: ArgumentParser) -> None:
    """Add the options of ``memlint models``."""
    parser.add_argument(
        "words", nargs="*", metavar="add ID | WORD", help="`add` and IDs, or words that the ID must contain"
    )
    parser.add_argument("--config", metavar="FILE", help="add: the config.json of the one ID, instead of cache and hub")
    parser.add_argument("--offline", action="store_true", help="add: do not ask the hub")
    parser.add_argument("--output-format", choices=("text", "json"), default="text", help="a table, or JSON")


def run(args: Namespace) -> int:
    """List models or save configs. Raises UserError."""
    words: list[str] = args.words
    if words[:1] == ["add"]:
        return _run_add(words[1:], args)
    if args.config is not None:
        raise UserError("`--config` belongs to `memlint models add ID --config FILE`")
    found = rows(words)
    if args.output_format == "json":
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return Exit.OK
    if not found:
        raise UserError(f"no known model has {' and '.join(f'`{word}`' for word in words)} in its ID")
    width = max(len(row["id"]) for row in found)
    kind = max(len(row["model_type"]) for row in found)
    for row in found:
        size = f"{row['num_hidden_layers']:>4} x {row['hidden_size']:<6}"
        sys.stdout.write(f"{row['id']:<{width}}  {row['model_type']:<{kind}}  {size} {row['where']}\n")
    count = "1 model" if len(found) == 1 else f"{len(found)} models"
    sys.stdout.write(f"{count} (layers x hidden size); `memlint models add ID` saves any other one.\n")
    return Exit.OK


def rows(words: list[str] | None = None, folder: str = ".") -> list[dict[str, Any]]:
    """Return the known models whose ID contains every word, with sizes and source: saved ones first."""
    from memlint.models.catalog import find, model_ids
    from memlint.models.config import read_config

    wanted = [word.lower() for word in words or ()]
    found: dict[str, dict[str, Any]] = {}

    def take(model_id: str, config: dict[str, Any], where: str, source: str) -> None:
        read = read_config(config, id=model_id, source=where)
        if isinstance(read, list) or model_id in found:
            return
        found[model_id] = {
            "id": model_id,
            "model_type": read.model_type,
            "family": read.family,
            "hidden_size": read.hidden_size,
            "num_hidden_layers": read.num_hidden_layers,
            "vocab_size": read.vocab_size,
            "approximate": read.approximate,
            "quantized": read.quantization is not None,
            "where": where,
            "source": source,
        }

    for model_id, path in _saved(folder):
        if all(word in model_id.lower() for word in wanted):
            from memlint.models.files import UnreadableConfig, read_config_file

            try:
                take(model_id, read_config_file(path), "project", os.path.relpath(path, folder))
            except (UnreadableConfig, FileNotFoundError):
                continue
    for model_id in model_ids():
        if all(word in model_id.lower() for word in wanted):
            row = find(model_id)
            if row is not None:
                take(model_id, row.config, "catalog", row.source)
    return list(found.values())


def add(model_id: str, *, folder: str = ".", config_file: str | None = None, offline: bool = False) -> str:
    """Save the config of a model beside the project and return the path of the file.

    The config comes from ``config_file``, else from the HF cache, else from the hub. It is checked first: nothing is
    written that memlint could not read back. Raises UserError.
    """
    from memlint.models.config import read_config
    from memlint.models.ids import file_name, is_model_id
    from memlint.models.resolve import PROJECT_FOLDER
    from memlint.report.write import write_atomically

    if not is_model_id(model_id):
        raise UserError(f"`{model_id}` is not a Hugging Face model ID (`organisation/name`)")
    config = _config_of(model_id, config_file, offline)
    read = read_config(config, id=model_id, source="project")
    if isinstance(read, list):
        raise UserError(f"the config of `{model_id}` is not sound: {read[0].message}")
    target = os.path.join(_project_root(folder), PROJECT_FOLDER)
    path = os.path.join(target, file_name(model_id))
    try:
        os.makedirs(target, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    write_atomically(path, json.dumps(config, indent=2, sort_keys=True) + "\n")
    return path


def _run_add(ids: list[str], args: Namespace) -> int:
    if not ids:
        raise UserError("`memlint models add` needs a model ID, for example `memlint models add Qwen/Qwen3-8B`")
    if args.config is not None and len(ids) != 1:
        raise UserError("`--config` gives the config of one model: name exactly one ID")
    if len(ids) > MAX_ADDED:
        raise UserError(f"at most {MAX_ADDED} models at a time")
    for model_id in ids:
        path = add(model_id, config_file=args.config, offline=args.offline)
        sys.stderr.write(f"saved `{os.path.relpath(path)}`\n")
    return Exit.OK


def _config_of(model_id: str, config_file: str | None, offline: bool) -> dict[str, Any]:
    from memlint.models.cache import cached_config
    from memlint.models.files import UnreadableConfig, config_in, read_config_file
    from memlint.models.hub import fetch_config, offline_by_environment

    path = config_file
    if config_file is not None:
        path = config_in(config_file)
        if path is None:
            raise UserError(f"there is no config.json at `{config_file}`")
    else:
        path = cached_config(model_id)
    if path is not None:
        try:
            return read_config_file(path)
        except (UnreadableConfig, FileNotFoundError) as error:
            if config_file is not None:
                raise UserError(f"`{path}` {error}") from None
    if offline or offline_by_environment():
        raise UserError(
            f"`{model_id}` is not in the Hugging Face cache: allow the network, or give its config with `--config FILE`"
        )
    return fetch_config(model_id)


def _project_root(folder: str) -> str:
    """The folder of the settings, else the root of the repository, else ``folder`` itself."""
    from memlint.models.resolve import upward
    from memlint.settings.load import settings_for

    return settings_for(folder).root or upward(folder)[-1]


def _saved(folder: str) -> list[tuple[str, str]]:
    from memlint.models.resolve import PROJECT_FOLDER

    target = os.path.join(_project_root(folder), PROJECT_FOLDER)
    try:
        names = sorted(os.listdir(target))
    except OSError:
        return []
    return [
        (name.removesuffix(".json").replace("__", "/", 1), os.path.join(target, name))
        for name in names
        if name.endswith(".json")
    ]
