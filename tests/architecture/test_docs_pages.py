"""The generated reference pages are current: `make docs` writes them."""

import pytest

from tests.architecture.test_names import sources
from tests.docs_pages.pages import PAGES, REFERENCE


@pytest.mark.parametrize("name", PAGES)
def test_page_is_current(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name]()


def test_no_module_of_the_wheel_writes_pages() -> None:
    """Every generated page says so; what writes that sentence belongs into tests/docs_pages."""
    assert [str(path) for path in sources() if "Generated from" in path.read_text()] == []
