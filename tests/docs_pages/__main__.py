"""Writes the generated pages of the documentation: `python -m tests.docs_pages`."""

from tests.docs_pages.pages import PAGES, REFERENCE


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())


if __name__ == "__main__":
    main()
