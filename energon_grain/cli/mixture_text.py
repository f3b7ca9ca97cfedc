"""A metadataset in lines of text: its tree, and what each dataset gets of the stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from energon_grain.cli.sizes import counted
from energon_grain.stream.mixture_summary import MILLION, MixtureSummary, NodeSummary, Share


def mixture_lines(summary: MixtureSummary) -> list[str]:
    """Lay out a summary as a table with the tree in its first column."""
    said = "repetitions" if summary.tree.kind == "blend_epochized" else "weight"
    seen = f"seen in {MILLION:,}" if summary.endless else "seen per epoch"
    rows: list[tuple[str, ...]] = [("", "samples", said, "share", seen), *_rows(summary, summary.tree, "", "")]
    if not any(row[2] for row in rows[1:]):
        rows = [(*row[:2], *row[3:]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{summary.path}, split {summary.split}: {_length(summary)}", ""]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        lines.append(("  " + "  ".join(cells)).rstrip())
    if summary.changes:
        lines += ["", f"Shares change at position {', '.join(f'{start:,}' for start in summary.changes)}."]
    if any(leaf.subflavors for leaf in summary.leaves):
        lines += ["", "Subflavors"]
        for leaf in summary.leaves:
            tags = ", ".join(f"{name}={value}" for name, value in leaf.subflavors.items())
            lines += [f"  {leaf.label}: {tags}"] if tags else []
    return lines


def _length(summary: MixtureSummary) -> str:
    datasets = f"{counted(len(summary.leaves), 'dataset')}, {counted(summary.samples, 'sample')}"
    if summary.epoch_positions is None:
        return f"{datasets}, endless"
    return f"{datasets}, {summary.epoch_positions:,} positions an epoch"


def _rows(summary: MixtureSummary, node: NodeSummary, first: str, further: str) -> Iterator[tuple[str, ...]]:
    """Rows of a node and all below it; `first` and `further` are the tree's lines before its label and its children."""
    leaf = None if node.leaf is None else summary.leaves[node.leaf]
    said = _chain([f"{weight:.6g}" for weight in node.weights])
    if node.repetitions is not None:
        said = f"{node.repetitions:.6g}"
    seen = ""
    if leaf is not None and leaf.seen_per_epoch is not None:
        seen = f"{leaf.seen_per_epoch:.6g}"
    elif leaf is not None:
        seen = _chain([f"{times:,.4g}" if times < 1000 else f"{times:,.0f}" for times in leaf.seen_per_million])
    label = node.kind if leaf is None else leaf.label
    yield first + label, f"{node.samples:,}", said, _chain(_percentages(node.shares)), seen
    for number, child in enumerate(node.children):
        last = number == len(node.children) - 1
        yield from _rows(summary, child, further + ("└─ " if last else "├─ "), further + ("   " if last else "│  "))


def _percentages(shares: Sequence[Share]) -> list[str]:
    return [f"{100 * share.share:.4g}%" for share in shares]


def _chain(texts: Sequence[str]) -> str:
    """What changes along the stream: the first, and the last after `…` where there are many."""
    shown = [*texts[:2], "…", texts[-1]] if len(texts) > 4 else texts
    return " → ".join(shown)
