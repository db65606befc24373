"""Servers inside sandboxes, reached over HTTP by a token: requests go in, answers come out, both bounded.

Anything that comes from a sandbox is hostile here. Start at ``requests``.
"""
