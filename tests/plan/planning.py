"""Build questions for the planner, from native settings or from a corpus file."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from pathlib import Path

import yaml

from memlint.engine.predict import predict
from memlint.engine.source import open_source
from memlint.errors import UserError
from memlint.hardware.parse import parse_target
from memlint.plan.limits import LADDER
from memlint.plan.planner import Planner
from memlint.plan.question import from_source
from memlint.plan.remedy import price

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"
DIALECTS = ("axolotl", "llamafactory", "trl", "hf-trainer")
EVERYTHING = bool(os.environ.get("MEMLINT_ALL_PLANS"))
"""Set to hold all the bars; by default a sample that takes seconds."""


def native(tmp_path, model, target=None, training=None, parallelism=None):
    """A native job file and the question about it."""
    job = {"memlint": 1, "model": model, "training": training or {}}
    if parallelism:
        job["parallelism"] = parallelism
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    return question(path, target)


def question(path, target, goal="fit"):
    source = open_source(str(path), target=target, offline=True, isolated=True)
    estimate, reason = predict(source.job, source.target)
    if estimate is None:
        raise UserError(f"{path}: {reason}")
    return from_source(source, estimate, hypothetical=False, goal=goal)


def names(plan):
    return None if plan is None else [step.remedy.name for step in plan.steps]


def corpus_files(seed):
    files = sorted(path for name in DIALECTS for path in (CORPUS / name).rglob("*") if path.is_file())
    random.Random(seed).shuffle(files)
    return files


def beside(path, folder):
    """A copy of a corpus file with its neighbours, in a repository of its own."""
    copy = folder / path.parent.name
    if not copy.exists():
        shutil.copytree(path.parent, copy)
        (copy / ".git").mkdir(exist_ok=True)
    return copy / path.name


def too_small(path, count):
    """The largest GPU (``count`` of a kind) on which the job surely does not fit; None where there is none."""
    ladder = sorted(LADDER, key=lambda name: -parse_target(name).usable_bytes)
    for name in ladder:
        target = name if count == 1 else f"{count}x{name}"
        try:
            asked = question(path, target)
        except (UserError, AttributeError):  # no job, or no prediction of it
            return None
        if asked.judge(asked.estimate) == "oom":
            return target
    return None


def overloaded(seed, folder):
    """Pairs of a corpus file and a target on which it does not fit."""
    chance = random.Random(seed)
    for path in corpus_files(seed):
        copy = beside(path, folder)
        target = too_small(copy, chance.choice((1, 1, 2, 8)))
        if target is not None:
            yield copy, target


def exhaustive(asked):
    """The cheapest price that fits (else is tight) over every combination, none pruned; None where there is none."""
    evaluate = Planner(asked)._search(wide=True)._evaluate
    outcomes = [
        outcome
        for choice in itertools.product(*[range(len(one.remedies) + 1) for one in evaluate.dimensions])
        if (outcome := evaluate(choice)) is not None
    ]
    for verdicts in (("fits",), ("tight",)):
        prices = [price(o.remedies) for o in outcomes if asked.judge(o.estimate) in verdicts]
        if prices:
            return min(prices)
    return None


def combinations(asked):
    """How many combinations the remedies of a question have."""
    evaluate = Planner(asked)._search(wide=True)._evaluate
    count = 1
    for dimension in evaluate.dimensions:
        count *= len(dimension.remedies) + 1
    return count
