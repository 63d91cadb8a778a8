"""The generated reference pages are current: `make docs` writes them."""

import pytest

from tests.docs_pages import PAGES, REFERENCE


@pytest.mark.parametrize("name", PAGES)
def test_page_is_current(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name]()
