"""docs/reference/configuration.md, made from the keys of all settings. Pure."""

from collections.abc import Iterator

from gpuwarden.settings.keys import FILE_SUFFIX, Key
from gpuwarden.settings.loader import API_VERSION, CONFIG_TYPES, FILE_KEY_SUFFIX, MAX_FILE_BYTES
from gpuwarden.settings.values import format_quantity
from gpuwarden.strict_yaml import MAX_DEPTH, MAX_NODES


def configuration_page() -> str:
    """Return the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Configuration"
    yield ""
    yield "Generated from the code (`gpuwarden/settings`); a test fails when it is out of date."
    yield ""
    yield (
        "Every key can be given as a flag (`--attestation.interval 25s` or"
        " `--set attestation.interval=25s`), as an environment variable, or in the file named by"
        " `--config` or `GPUWARDEN_CONFIG`. Rank: flag > environment > file > default. Unknown"
        " keys, flags and `GPUWARDEN_` variables are errors; everything that is wrong is reported"
        " at once, and the process ends with exit code 2."
    )
    yield ""
    yield (
        f"The file is YAML with `apiVersion: {API_VERSION}` and the `kind` below. `null` means"
        f" “not given”. A secret may also be given as a file's name: `NAME{FILE_SUFFIX}` in the"
        f" environment, `name{FILE_KEY_SUFFIX}` in the file. It is read strictly: text keys given"
        f" once, no anchors, aliases or tags, at most {format_quantity(MAX_FILE_BYTES)}B,"
        f" {MAX_DEPTH} levels and {MAX_NODES:,} keys and values."
    )
    for config in CONFIG_TYPES.values():
        yield ""
        yield f"## {config.kind}"
        yield ""
        yield "| key | environment | default | expected | meaning |"
        yield "|---|---|---|---|---|"
        for key in config.keys:
            yield _row(key)


def _row(key: Key) -> str:
    default = _default(key)
    names = [f"`{name}`" for name in (key.env, *key.spec.aliases)]
    if key.spec.secret:
        names.append(f"`{key.env}{FILE_SUFFIX}`")
    cells = [f"`{key.name}`", ", ".join(names), default, key.spec.kind.expects, key.spec.help]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(key: Key) -> str:
    if key.spec.default_from:
        rest = "" if key.required else f", else `{key.shown(key.default)}`"
        return f"`${key.spec.default_from}`{rest}"
    if key.required:
        return "required"
    if key.default is None or key.spec.secret:
        return "none"
    return f"`{key.shown(key.default)}`"
