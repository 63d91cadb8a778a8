"""MkDocs' hooks: pages from outside docs/, anchors and links as on a forge (`mkdocs.yml`)."""

from typing import Any

from mkdocs.structure.files import File

from tests.docs_pages.site import OUTSIDE, ROOT, folded, relinked, slug, source


def on_config(config: Any) -> Any:
    """Anchors are made as forges make them."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/."""
    for path in OUTSIDE:
        files.append(File.generated(config, path, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links hold on the site; columns of tests take little room."""
    return folded(relinked(markdown, source(page.file.src_uri)))
