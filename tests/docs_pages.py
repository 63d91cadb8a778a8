"""Writes the generated reference pages: `python -m tests.docs_pages`; tests compare them."""

from collections.abc import Callable
from pathlib import Path

from gpuwarden.reasons_page import reasons_page

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"

PAGES: dict[str, Callable[[], str]] = {
    "reasons.md": reasons_page,
}


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())


if __name__ == "__main__":
    main()
