"""One answer of the gateway: a turn, the cells it runs, and requests that come again.

Start with ``turn.py``. Uses ``asking``, ``upstream`` and ``running``; ``messages.py`` is the route.
"""
