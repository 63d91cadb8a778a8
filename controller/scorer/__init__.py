"""The scoring service as a process of its own, `gpuwarden-score`: HTTP, its file, its metrics."""
