"""A record on the terminal: the matrix of prompts and cells, what failed, and the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_record(record: dict[str, Any], out: Path, console: Console) -> None:
    cells = [c["id"] for c in record["cells"]]
    if cells:
        # One word a line, so that the whole matrix fits 80 columns.
        headings = [cell.replace("/", "\n") for cell in cells]
        table = Table("prompt", *headings, title=f"tokens equal to Hugging Face's, {escape(record['model']['name'])}")
        for column in table.columns[1:]:
            column.justify = "right"
        table.columns[0].no_wrap = True
        for prompt, row in record["tokens"].items():
            table.add_row(escape(prompt), *(_agreed(row, cell) for cell in cells))
        console.print(table)
    for check in record["checks"]:
        if check["status"] != "passed":
            what = ", ".join(escape(part) for part in (check["figure"], check["detail"]) if part)
            console.print(f"{check['status']:>8}  {escape(check['id'])}: {what}")
    passed = sum(c["status"] == "passed" for c in record["checks"])
    console.print(f"{passed} of {len(record['checks'])} checks passed; {_reused(record)}")
    colour = "green" if record["passed"] else "red"
    verdict = record["verdict"]
    console.print(f"[bold {colour}]{verdict['class']}[/]: {escape(verdict['explanation'])}")
    console.print(f"report: {escape(str(out / 'report.html'))}", soft_wrap=True)


def _agreed(row: dict[str, Any], cell: str) -> str:
    found = row["cells"].get(cell)
    if found is None:
        return "[red]did not run[/]"
    colour = "green" if found["agreed"] == found["total"] else "red"
    return f"[{colour}]{found['agreed']}/{found['total']}[/]"


def _reused(record: dict[str, Any]) -> str:
    if not record["reused"]:
        return "nothing was reused"
    return f"reused from the cache: {', '.join(record['reused'])}"
