"""Writes `docs/recipe.md` from schema and rules: `python -m avlm.recipe.docs` (`--check`: exit 1 when it is stale)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from avlm.recipe.checks import RULES
from avlm.recipe.explain import show
from avlm.recipe.fields import SchemaField, schema_fields
from avlm.utils.files import write_atomic

PAGE = Path(__file__).parents[2] / "docs" / "recipe.md"

_HEAD = """\
<!-- Written by `python -m avlm.recipe.docs` from avlm/recipe/schema.py and checks.py. Do not edit. -->
# Recipe reference

A recipe is a YAML file that says what is trained, on what, how and where. This one is complete; every field that it
leaves out has its default:

```yaml
name: my_run
model:
  family: qwen3_omni_moe
  checkpoint: Qwen/Qwen3-Omni-30B-A3B-Instruct
batch:
  global_batch_size: 32
schedule:
  epochs: 2
data:
  train: data/train.jsonl
  video_root: data
parallel:
  ep: 8
memory:
  optimizer_state_dtype: bfloat16
output_dir: outputs/my_run
```

- `base: other.yaml` (relative to the file) takes everything from another recipe; what the file says itself is merged
  over it, block by block. Lists are replaced.
- Every command takes overrides after the recipe: `optimizer.lr=1e-5`, `data.validation=[]`, `method.lora={rank: 16}`.
- `avlm recipe explain RECIPE` shows each value, the line it comes from and the stack's native keys that it becomes.
- Unknown keys, wrong types and broken rules are errors with file and line. Values are those of YAML 1.2: `5e-5` is a
  number, `yes`, `no`, `on`, `off` and `30:00` are text, `1_000` is text.
"""


def render() -> str:
    """The page as Markdown."""
    parts = [_HEAD, "## Fields\n", *_blocks(), "## Rules across fields\n"]
    parts += [f"- {rule.text}{_where(rule.stacks)}\n" for rule in RULES]
    return "\n".join(part.rstrip("\n") if part.startswith("- ") else part for part in parts) + "\n"


def _where(stacks: Sequence[str]) -> str:
    return f" ({', '.join(stacks)} only)" if stacks else ""


def _blocks() -> list[str]:
    """A table for the recipe itself and one for each of its blocks."""
    fields = schema_fields()
    blocks = ["", *(path for path, field in fields.items() if field.section)]
    return [_table(block, fields) for block in blocks]


def _table(block: str, fields: dict[str, SchemaField]) -> str:
    prefix = f"{block}." if block else ""
    inside = [f for p, f in fields.items() if p.startswith(prefix) and "." not in p[len(prefix) :]]
    text = f"### `{block}`\n\n{fields[block].section.__doc__}\n" if block else "### The recipe itself\n"
    rows = [
        f"| `{field.path}` | {_escaped(field.type)} | {_default(field)} | {_escaped(field.description)} |"
        for field in inside
        if not field.section or field.default is None
    ]
    named = [f"`{field.path}`" for field in inside if field.section]
    if named:
        text += f"\nBlocks inside: {', '.join(named)}.\n"
    return "\n".join([text, "| Field | Takes | Default | Meaning |", "|---|---|---|---|", *rows, ""])


def _default(field: SchemaField) -> str:
    return "needed" if field.required else f"`{_escaped(show(field.default))}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Sequence[str]) -> int:
    """Writes the page, or with `--check` compares it. Returns the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m avlm.recipe.docs [--check]", file=sys.stderr)
        return 2
    page = render()
    if not arguments:
        write_atomic(PAGE, page)
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    print(f"{PAGE.name} is out of date; run `python -m avlm.recipe.docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
