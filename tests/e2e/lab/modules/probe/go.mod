module gpuwarden.dev/lab/probe

go 1.24
