"""Generated protobuf code. Transport only: what is signed travels inside `bytes`."""
