"""A backtest for people, for a pull request, and for programs."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from shunter.model.backtest import Act, Backtest, BudgetUse, Contrast, Tally
from shunter.model.canon import plain
from shunter.model.finding import Verdict
from shunter.model.plan import OperationKind
from shunter.model.units import Duration
from shunter.report.contrast import contrast_document, contrast_text, counted, markdown_lines
from shunter.report.markdown import LIMIT, code, escaped, page
from shunter.report.markdown import table as markdown_table
from shunter.report.marks import mark
from shunter.report.plan import headline
from shunter.report.words import Page, count, moment, safe, short, span

MARK: Final = "<!-- shunter: backtest -->"
"""First line of the comment: by it, whoever posts finds the one that is to be updated."""
_MOST: Final = 40
_DIFFERENCES: Final = 15
"""So many are shown in a pull request's comment."""
_POLICIES: Final = ("policy", "operations", "undone", "began to act", "verdicts changed", "act", "hold", "inconclusive")
_PRICES: Final = ("instead of", "acts", "spent", "instead", "saved", "not known")
_KEY: Final = ("figure", "base", "head")
_STOPS: Final = (OperationKind.MOVE, OperationKind.PARK, OperationKind.DRAIN)
Rows = list[tuple[str, ...]]


def backtest_text(found: Sequence[Backtest], console: Console, contrast: Contrast | None = None) -> None:
    """One part for each backtest; with two, first what differs between them: figures, and what did it where that is known."""
    out = Page(console)
    if len(found) > 1:
        out.title("Side by side")
        _table(console, _KEY, _side_by_side(found))
        out.blank()
    if contrast is not None:
        contrast_text(contrast, console)
        out.blank()
    for number, one in enumerate(found):
        if number:
            out.blank()
        _one(out, console, one)


def _one(out: Page, console: Console, one: Backtest) -> None:
    out.title(_title(one))
    out.line(_verdict(one), indent=2, hang=2)
    out.line(_kept(one), indent=2, hang=2)
    for title, head, rows in (
        ("Policies (act, hold, inconclusive: share of the steps looked at)", _POLICIES, _policies(one)),
        ("Budgets", ("budget", "group", "held something", "when used the most"), _budgets(one.budgets)),
        (f"{one.unit}, and what would have been instead", _PRICES, _prices(one)),
    ):
        if rows:
            out.blank()
            out.title(title)
            _table(console, head, rows)
    for price in one.prices:
        out.line(f"{price.baseline}: {price.formula}", indent=2, hang=4)
    for title, lines in (("Operations", [_act(a) for a in one.acts]), ("Lost with their node", _lost(one))):
        if lines:
            out.blank()
            out.title(title)
        for line in lines[:_MOST]:
            out.line(line, indent=2, hang=4)
        if len(lines) > _MOST:
            out.line(f"and {len(lines) - _MOST:,} more: the JSON form has all of them", indent=2)
    out.blank()
    out.title("What this can't know, and what it assumes")
    for remark in one.remarks:
        out.line(f"- {remark}.", indent=2, hang=2)


def backtest_markdown(found: Sequence[Backtest], contrast: Contrast | None = None, *, link: str = "", limit: int = LIMIT) -> str:
    """At most `limit` bytes of Markdown: figures whole, differences and operations folded and cut in their middle if need be."""
    before = [MARK, f"### Shunter: {_verdict(found[-1])}", "", f"{escaped(_title(found[-1]))}. {escaped(_kept(found[-1]))}", ""]
    if len(found) > 1:
        before += [*markdown_table(_KEY, [tuple(escaped(c) for c in row) for row in _side_by_side(found)]), ""]
    if contrast is not None:
        lines = markdown_lines(contrast)
        before += [f"**What differs, and what did it**: {escaped(counted(contrast))}", "", *lines[:_DIFFERENCES]]
        before += [f"- and {len(lines) - _DIFFERENCES:,} more"] if len(lines) > _DIFFERENCES else []
        before += [""]
    one = found[-1]
    policies = _policies(one)
    before += markdown_table(_POLICIES, [(code(name), *rest) for name, *rest in policies[:_MOST]])
    if len(policies) > _MOST:
        before += ["", f"and {len(policies) - _MOST:,} more policies"]
    before += ["", f"**{one.unit}**", "", *markdown_table(_PRICES, _prices(one)), ""]
    before += [f"- {escaped(p.baseline)}: {escaped(p.formula)}" for p in one.prices]
    before += ["", "**What this can't know, and what it assumes**", "", *(f"- {escaped(r)}." for r in one.remarks[:_MOST])]
    after = [f"[All of it]({link})"] if link else []
    return page(before, [f"- {escaped(_act(a))}" for a in one.acts], after, title="Operations", limit=limit)


def backtest_json(found: Sequence[Backtest], contrast: Contrast | None = None) -> bytes:
    """`backtests`: each as in the model, with `saved` in each price; without the points of the picture. With two, also their `contrast`."""
    documents: list[dict[str, Any]] = []
    for one in found:
        document = plain(one)
        del document["points"]
        document["prices"] = [{**plain(p), "saved": p.saved} for p in one.prices]
        documents.append(document)
    whole = {"backtests": documents, **({} if contrast is None else {"contrast": contrast_document(contrast)})}
    return msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=2) + b"\n"


def _title(one: Backtest) -> str:
    every = Duration(one.step)
    return f"{moment(one.begin)} to {moment(one.end)}, every {every} ({count(one.steps, 'step')}), policies at {short(one.commit)}"


def _verdict(one: Backtest) -> str:
    kinds = Counter(a.operation.kind for a in one.acts if not a.operation.preview)
    parts = [count(kinds[kind], kind.value) for kind in OperationKind if kinds[kind]]
    shown = sum(a.operation.preview for a in one.acts)
    previews = f"; {count(shown, 'operation')} of preview policies shown" if shown else ""
    undone = sum(a.undoes for a in one.acts)
    flaps = f", {undone:,} of them undoing what was less than an hour old" if undone else ""
    return (f"{', '.join(parts)} would have been carried out{flaps}" if parts else "nothing would have been carried out") + previews


def _kept(one: Backtest) -> str:
    sessions, tokens, unknown = one.kept
    said = f"{sessions:,.0f} sessions with {tokens:,.0f} tokens of context kept"
    told = f", as far as is known: {count(unknown, 'operation')} can't be told" if unknown else ""
    lost = f"; {count(len(one.lost), 'worker')} lost with their node" if one.lost else ""
    chosen = sum(a.instead == "nothing" for a in one.carried)
    own = f"; {count(chosen, 'worker')} carried elsewhere by choice would have lost nothing" if chosen else ""
    return f"{said}{told}{own}{lost}; workers stood still for {span(_still(one))} in all."


def _still(one: Backtest) -> float:
    return sum(a.still or 0.0 for a in one.acts if not a.operation.preview)


def _policies(one: Backtest) -> Rows:
    busiest = sorted(one.tallies, key=lambda t: (-t.operations, -t.acted, t.policy))
    return [(t.policy, f"{t.operations:,}", f"{t.undone:,}", f"{t.acted:,}", f"{t.flips:,}", *_shares(t, one.looked)) for t in busiest]


def _shares(tally: Tally, steps: int) -> tuple[str, ...]:
    lacking = f" ({', '.join(tally.inputs_missing)})" if tally.inputs_missing else ""
    act, hold, unsure = (f"{tally.steps.get(v, 0) / max(1, steps):.1%}" for v in (Verdict.ACT, Verdict.HOLD, Verdict.INCONCLUSIVE))
    return act, hold, unsure + lacking


def _budgets(uses: Sequence[BudgetUse]) -> Rows:
    shown = sorted(uses, key=lambda u: (-u.held, u.policy, u.group))
    return [(u.policy, u.group, count(u.held, "step"), u.told) for u in shown[:_MOST]]


def _prices(one: Backtest) -> Rows:
    return [
        (p.baseline, f"{p.acts:,}", f"{p.spent:,.0f}", f"{p.instead:,.0f}", f"{p.saved:,.0f}" if p.acts else "-", f"{p.unpriced:,}")
        for p in one.prices
    ]


def _act(act: Act) -> str:
    holds = f", {act.sessions:,.0f} sessions" if act.sessions and act.operation.kind in _STOPS else ""
    undoes = ", undoes an earlier one" if act.undoes else ""
    done = f"{mark(preview=act.operation.preview)}{headline(act.operation)} by {act.operation.policy}"
    return f"{moment(act.at)}  {done}{holds}{undoes}: {act.operation.reason}"


def _lost(one: Backtest) -> list[str]:
    return [
        f"{moment(gone.at)}  {gone.worker} with {gone.node}"
        + (f", {gone.sessions:,.0f} sessions" if gone.sessions is not None else ", sessions not known")
        for gone in one.lost
    ]


def _side_by_side(found: Sequence[Backtest]) -> Rows:
    """Key figures, one column each."""

    def row(name: str, values: Sequence[str]) -> tuple[str, ...]:
        return (name, *values)

    rows = [row("policies at", [short(o.commit) for o in found])]
    kinds = [Counter(a.operation.kind for a in o.acts if not a.operation.preview) for o in found]
    rows += [row(f"{kind.value}s", [f"{k[kind]:,}" for k in kinds]) for kind in OperationKind if any(k[kind] for k in kinds)]
    rows.append(row("undoing an earlier one", [f"{sum(a.undoes for a in o.acts):,}" for o in found]))
    rows.append(row("sessions kept", [f"{o.kept[0]:,.0f}" for o in found]))
    rows.append(row("workers lost", [f"{len(o.lost):,}" for o in found]))
    rows.append(row("steps that a budget held", [f"{sum(u.held for u in o.budgets):,}" for o in found]))
    rows.append(row("stood still", [span(_still(o)) for o in found]))
    for prices in zip(*(o.prices for o in found), strict=True):
        rows.append(row(f"saved against {prices[0].baseline}", [f"{p.saved:,.0f}" for p in prices]))
    return rows


def _table(console: Console, head: Sequence[str], rows: Rows) -> None:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, name in enumerate(head):
        made.add_column(name, overflow="fold", justify="left" if number == 0 else "right")
    for row in rows:
        made.add_row(*(safe(cell) for cell in row))
    console.print(made)
