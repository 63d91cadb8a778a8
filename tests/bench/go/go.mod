module gpuwarden-bench

go 1.23
