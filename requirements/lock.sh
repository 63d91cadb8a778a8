#!/bin/sh
# Resolves the hashed requirement files from pyproject.toml. No index or file host is
# written into them, so that they install from any mirror.
set -eu
cd "$(dirname "$0")/.."
compile() {
  uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
    --no-header --no-annotate --python-version 3.11 "$@" > /dev/null
}
compile pyproject.toml --extra agent --extra controller --group dev -o requirements/dev.txt
compile pyproject.toml -c requirements/dev.txt -o requirements/cli.txt
compile --group pyproject.toml:agent-image -c requirements/dev.txt -o requirements/agent.txt
compile pyproject.toml --extra controller -c requirements/dev.txt -o requirements/controller.txt
compile pyproject.toml --group demo -c requirements/dev.txt -o requirements/demo.txt
compile --group pyproject.toml:zig -o requirements/zig.txt
compile --group pyproject.toml:go -o requirements/go.txt
compile --group pyproject.toml:fuzz -o requirements/fuzz.txt
compile --no-deps --group pyproject.toml:chart -o requirements/chart.txt
compile --group pyproject.toml:docs -o requirements/docs.txt
compile --group pyproject.toml:images -c requirements/dev.txt -o requirements/images.txt
python -m tests.deploy.wheels
