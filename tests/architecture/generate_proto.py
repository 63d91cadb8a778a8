"""Generates the protobuf code into a folder: `python -m tests.architecture.generate_proto DIR`.

The path of a .proto below proto/ is its Python package path, so the generated
imports need no rewriting. protoc-gen-mypy and protoc-gen-mypy_grpc must be on PATH.
"""

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "proto").rglob("*.proto"))


def generate(target: Path) -> None:
    """Write all generated files below `target`; raises RuntimeError where protoc refuses."""
    arguments = [
        "protoc",
        f"-I{ROOT / 'proto'}",
        f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
        f"--python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--grpc_python_out={target}",
        f"--mypy_grpc_out=quiet:{target}",
        *(str(source) for source in SOURCES),
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc refused; its message is above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
