"""A Kubernetes manifest from YAML or JSON text, read without the traps of YAML.

Duplicate keys, anchors and several documents are refused; times stay text. Pure.
What is in the manifest is for the controller to judge.
"""

from typing import Any, Final

import yaml

MAX_BYTES: Final = 1024 * 1024
_TEXT: Final = "tag:yaml.org,2002:str"


class ManifestError(ValueError):
    """The text is not one manifest; says where and what was expected."""


class _Loader(yaml.SafeLoader):
    """SafeLoader without anchors, duplicate keys and timestamps."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_mark()
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the signature of the library
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != _TEXT:
                text = "a key must be text; quote it"
                raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
            if key.value in seen:
                text = f"key {key.value[:80]!a} appears twice"
                raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_manifest(content: bytes) -> dict[str, Any]:
    """The one object in `content` (UTF-8 YAML or JSON); raises ManifestError."""
    if len(content) > MAX_BYTES:
        raise ManifestError(f"larger than {MAX_BYTES} bytes")
    try:
        documents = [x for x in yaml.load_all(content.decode(), _Loader) if x is not None]
    except UnicodeDecodeError as error:
        raise ManifestError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ManifestError("nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ManifestError(f"not YAML or JSON: {_where(error)}") from None
    if len(documents) != 1:
        raise ManifestError(f"expected one manifest, found {len(documents)}")
    if not isinstance(documents[0], dict):
        raise ManifestError("expected an object such as a Pod or Deployment")
    return documents[0]


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark is not None else problem
