"""One answer of the gateway: a turn, the cells that it runs, and requests that are repeated.

Start with ``turn.py``. Uses ``requests``, ``upstream`` and ``running``; ``messages.py`` is the route.
"""
