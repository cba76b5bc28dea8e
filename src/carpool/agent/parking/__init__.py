"""Moving a program's tensors to the host and back while it waits for its turn."""
