"""How does a sandbox reach the outside? The proxy: a process of its own beside the engine, and the engine's hold on it.

Its folders are the way of a request: ``doors``, ``http``, ``reaching``, over ``streams``, with ``secrets``. May import
``isolation`` and what is below. Start reading at ``reaching.deciding``: what a connection is asked, and who answers.
"""
