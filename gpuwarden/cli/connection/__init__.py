"""How a command reaches a controller and the API server, and who calls."""
