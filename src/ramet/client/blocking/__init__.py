"""The blocking face: Sandbox and what it gives. Generated from ``client/asynchronous``, this file excepted."""
