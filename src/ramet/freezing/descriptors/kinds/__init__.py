"""One module per kind of open file that is no socket: how it is read, and made again in a copy."""
