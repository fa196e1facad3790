"""One self-contained page: no script, no font, nothing from a network; readable on a phone and in print."""

from __future__ import annotations

from html import escape
from typing import Sequence

from memlint import __version__
from memlint.pictures import svg
from memlint.pictures.collect import Missing, Picture
from memlint.units import gib

STYLE = """
:root{--ink:#1d2430;--quiet:#5a6472;--paper:#fff;--line:#d7dce2;--ok:#1f7a3d;--tight:#9a6400;--bad:#b3261e;
--okfill:#cfe9d6;--tightfill:#f6e3b4;--badfill:#f3c9c5;--nofill:#e8ebee}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--quiet:#a2abb8;--paper:#14181e;--line:#323a45;--ok:#6fcf8b;
--tight:#e3b65a;--bad:#ff8a80;--okfill:#1f4a2c;--tightfill:#54430f;--badfill:#5c2320;--nofill:#2a313a}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:820px;color:var(--ink);background:var(--paper);
font:16px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.35rem;margin:.2em 0}h2{font-size:1.05rem;margin:2em 0 .2em;overflow-wrap:anywhere}
h3{font-size:.9rem;margin:1.2em 0 .3em;color:var(--quiet);font-weight:600}
p{margin:.3em 0}.quiet{color:var(--quiet);font-size:.9rem}
section{border-top:1px solid var(--line)}
svg{width:100%;max-width:680px;height:auto;display:block}
svg text{fill:var(--ink);font:13px system-ui,sans-serif}svg .small{font-size:12px;fill:var(--quiet)}
svg .name{font-weight:600}svg .cell{fill:var(--ink)}
svg .fits{fill:var(--ok)}svg .tight{fill:var(--tight)}svg .oom{fill:var(--bad)}
.usable{stroke:var(--ink);stroke-width:2;stroke-dasharray:5 3}.end{stroke:var(--ink);stroke-width:1.5}
.fits-cell{fill:var(--okfill)}.tight-cell{fill:var(--tightfill)}.oom-cell{fill:var(--badfill)}.unknown-cell{fill:var(--nofill)}
.own{stroke:var(--ink);stroke-width:2}
.legend{font-size:.85rem;color:var(--quiet)}.key{display:inline-block;margin-right:1em;white-space:nowrap}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px;vertical-align:-1px}
.verdict{font-weight:600}.verdict.fits{color:var(--ok)}.verdict.tight{color:var(--tight)}.verdict.oom{color:var(--bad)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.35em .6em .35em 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}code{font-size:.85em;overflow-wrap:anywhere}
@media print{body{max-width:none}section{break-inside:avoid}}
"""

WORDS = {
    "fits": "fits",
    "tight": "tight: may run out of memory",
    "oom": "out of memory",
    "unknown": "no target declared",
}


def page(pictures: Sequence[Picture], missing: Sequence[Missing]) -> str:
    """The whole page as text."""
    body = [
        "<h1>GPU memory of the training configs</h1>",
        f'<p class="quiet">Predicted by memlint {escape(__version__)}: the highest memory of one GPU in one '
        f"steady step, GiB (2<sup>30</sup> bytes). {_count(pictures)}</p>",
    ]
    if pictures:
        body += [svg.bars(pictures), svg.legend()]
    body += [_section(picture) for picture in pictures]
    if missing:
        items = "".join(f"<li><code>{escape(m.name)}</code>: {escape(m.reason)}</li>" for m in missing)
        body.append(f"<section><h2>Without a prediction</h2><ul>{items}</ul></section>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>GPU memory of the training configs</title><style>{STYLE}</style></head>\n<body>"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _count(pictures: Sequence[Picture]) -> str:
    counts = {verdict: sum(p.verdict == verdict for p in pictures) for verdict in ("fits", "tight", "oom")}
    jobs = f"{len(pictures)} job{'s' if len(pictures) != 1 else ''}"
    parts = [f"{count} {WORDS[verdict].partition(':')[0]}" for verdict, count in counts.items() if count]
    return f"{jobs}: {', '.join(parts)}." if parts else f"{jobs}."


def _section(picture: Picture) -> str:
    estimate = picture.estimate
    usable = f" of {gib(picture.usable)} usable on {escape(picture.target or '')}" if picture.usable is not None else ""
    parts = [
        f"<section><h2>{escape(picture.name)}</h2>",
        f'<p class="quiet">{escape(picture.model)} &middot; {escape(picture.dialect)} &middot; '
        f"micro batch {picture.batch} "
        f"&times; {picture.sequence:,} tokens</p>",
        f"<p>Predicted peak <strong>{gib(estimate.device_bytes)} GiB</strong> ({gib(estimate.low_bytes)}&ndash;"
        f"{gib(estimate.high_bytes)}){usable}, in the {escape(estimate.phase)}: "
        f'<span class="verdict {picture.verdict}">{WORDS[picture.verdict]}</span></p>',
    ]
    if estimate.timeline:
        parts += ["<h3>One step, phase by phase: highest and final allocated memory</h3>", svg.timeline(picture)]
    if picture.cells:
        parts += ["<h3>Micro batch and sequence length (~ tight, x out of memory)</h3>", svg.heat_map(picture)]
    if picture.plans:
        parts += ["<h3>Plans, best first</h3>", _plans(picture)]
    return "".join([*parts, "</section>"])


def _plans(picture: Picture) -> str:
    rows = []
    for plan in picture.plans:
        edit = f"<br><code>{escape(plan.edit.replace('`', ''))}</code>" if plan.edit else ""
        compute = f"{plan.compute:+.0%}" if abs(plan.compute) >= 0.005 else "same"
        rows.append(
            f"<tr><td>{escape(plan.words)}{edit}</td><td class='n'>{gib(plan.device_bytes)}</td>"
            f"<td class='n'>{compute}</td><td><span class='verdict {plan.verdict}'>{plan.verdict}</span></td></tr>"
        )
    head = "<tr><th>change</th><th class='n'>peak, GiB</th><th class='n'>compute</th><th></th></tr>"
    return f"<div class='wide'><table>{head}{''.join(rows)}</table></div>"
